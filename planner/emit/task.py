"""`task.json`: what the reference trainer reads beside `ds_config.json`.

Owns the split between the two files: a Candidate's values that DeepSpeed's JSON can hold are written there, all others
are named in `NOT_EMITTED` and travel in the task. The trainer itself is in `planner.runtime`.
"""

from __future__ import annotations

import json

from planner.spec import Candidate, JobSpec, RunPromise, TrialTask
from planner.spec.codec import to_plain

_NOTHING_PROMISED = RunPromise()

# Fields of Candidate (dotted) that no key of `ds_config.json` carries, each with the reason. A test walks every field.
NOT_EMITTED: dict[str, str] = {
    "layout.tensor_parallel_size": "DeepSpeed learns it from the topology the trainer passes; its own tensor_parallel "
    "block hangs with pipelines and leaves embedding and head whole",
    "layout.pipeline_parallel_size": "DeepSpeed never reads pipeline.stages; the degree is that of the trainer's "
    "pipeline module",
    "layout.stage_layers": "DeepSpeed never reads pipeline.partition; the trainer cuts its list of blocks by it",
    "activation_checkpointing": "DeepSpeed's activation_checkpointing block does nothing unless code calls it; the "
    "trainer wraps the layers",
    "attention": "the kernel belongs to the model, which the trainer builds",
    "tuning.torch_compile": "DeepSpeed's compile block does nothing unless code calls engine.compile(); the trainer "
    "compiles its layers, or the whole model",
    "tuning.cross_entropy": "head and loss belong to the model, which the trainer builds",
    "tuning.allocator": "an environment variable that is read before CUDA starts; the start script and the trainer set "
    "it",
}


def render_task(candidate: Candidate, *, job: JobSpec, promise: RunPromise = _NOTHING_PROMISED) -> TrialTask:
    """The reference trainer's task: `candidate` for all the job's steps. Its DeepSpeed config is the file that
    `--deepspeed-config` names, so the text is not repeated here."""
    return TrialTask(
        model=job.model,
        training=job.training,
        candidate=candidate,
        device=job.cluster.gpu.device,
        ds_config_json="",
        steps=job.training.steps,
        warmup_steps=0,
        promise=promise,
    )


def render_task_text(candidate: Candidate, *, job: JobSpec, promise: RunPromise = _NOTHING_PROMISED) -> str:
    """The text of `task.json`."""
    return json.dumps(to_plain(render_task(candidate, job=job, promise=promise)), indent=2, allow_nan=False) + "\n"
