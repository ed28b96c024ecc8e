"""What the emitter writes for the example jobs passes `planner check` without a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.jobs import machine_facts, trace_factory
from planner.emit import render_ds_config_text
from planner.jobfile import load_job, resolve_job
from planner.lint import lint_document, read_document
from planner.resources import find_data_dir
from planner.rules import ConfigContext, Consumer, ModelFacts, known_releases
from planner.space import enumerate_candidates
from planner.spec import ScriptKind
from planner.spec.columns import candidate_at
from planner.trial import probe_machine

JOBS = sorted(find_data_dir("configs").glob("jobs/*.yaml"))
SAMPLES = 40
PLANNED_FOR = [release for release in known_releases() if release >= "0.19.6"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_example_jobs_configurations_have_no_findings(path: Path) -> None:
    job_file = load_job(path)
    traced = trace_factory(job_file) if job_file.factory else None
    job = resolve_job(job_file, machine=machine_facts(probe_machine()), traced=traced)
    columns = enumerate_candidates(job).columns
    kind = job.launch.script_kind
    assert len(columns) > 0
    step = max(1, len(columns) // SAMPLES)
    for row in range(0, len(columns), step):
        candidate = candidate_at(columns, row, num_layers=job.model.num_layers)
        for release in PLANNED_FOR:
            text = render_ds_config_text(candidate, job=job, deepspeed_version=release)
            context = ConfigContext(
                world_size=candidate.layout.world_size,
                tensor_parallel_size=candidate.layout.tensor_parallel_size,
                pipeline_parallel_size=candidate.layout.pipeline_parallel_size,
                deepspeed_version=release,
                version_stated=True,
                consumer_stated=True,
                client_optimizer=None if job.launch.command else False,
                consumer=Consumer.DEEPSPEED if kind is ScriptKind.DEEPSPEED else Consumer.HUGGINGFACE,
                gpu_memory_bytes=job.cluster.gpu.memory_usable_bytes,
                model=ModelFacts(hidden_size=job.model.hidden_size),
            )
            result = lint_document(read_document(text), context)
            assert result.findings == (), candidate.key
            assert result.notes == (), candidate.key
            assert result.batch is not None
            assert result.batch.train_batch_size == job.training.global_batch_size
