"""`verify` of a plan for a script of the user's own: the emitted start script runs as it is, but watched.

Owns the folder that makes every Python of the run load the watch, and turning the ranks' files into the report that
`comparison` judges. The watch itself is in `planner.runtime.script_attach`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import planner
from planner.app.trials import script_modules
from planner.errors import PromiseBroken
from planner.rundir import names
from planner.spec import JobSpec, Plan, TrialTask
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.trainer import TrainerReport
from planner.spec.worker import RankResult

WATCH_FILE = "watch.json"
# Loaded by every Python that starts; one line, because whatever fails in it would fail the run.
_SITE = "import os\nfrom planner.runtime.script_attach import attach\n\nattach(os.environ)\n"


def prepare_watch(folder: Path, *, job: JobSpec, plan: Plan, steps: int, config_text: str) -> dict[str, str]:
    """Write the watch into `folder`; the variables that make the run load it."""
    task = TrialTask(
        model=job.model,
        training=job.training,
        candidate=plan.candidate,
        device=job.cluster.gpu.device,
        ds_config_json=config_text,
        steps=max(1, steps - 1),
    )
    watch = {"task": to_plain(task), "modules": list(script_modules(job))}
    (folder / WATCH_FILE).write_text(json.dumps(watch), encoding="utf-8")
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    paths = [str(site), str(Path(planner.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {"MESHPLAN_WATCH": str(folder / WATCH_FILE), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def read_watch(folder: Path, *, plan: Plan, job: JobSpec, log: str) -> TrainerReport:
    """What the ranks left. Raises PromiseBroken, with what the first of them said, when one left no figures."""
    reports = []
    for rank in range(plan.candidate.layout.world_size):
        path = folder / f"rank_{rank}.json"
        try:
            result = from_plain(RankResult, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, DecodeError):
            result = RankResult()
        if result.report is None:
            said = result.failure.message if result.failure else "it never came to the end of its steps"
            raise PromiseBroken(
                f"your script, started by {names.LAUNCH}, gave no figures on rank {rank}",
                why=said,
                fix=f"read {log}; `planner plan` says of each trial how your script ended",
            )
        reports.append(result.report)
    first = reports[0]
    step_s = max(max(times) for times in zip(*(report.step_times_s for report in reports)))
    tokens = job.training.global_batch_size * job.training.seq_len
    return TrainerReport(
        resumed_from_step=0,
        steps_done=len(first.step_times_s) + 1,
        losses=first.losses,
        tokens_per_s=tokens / step_s,
        ranks=tuple(reports),
    )
