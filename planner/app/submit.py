"""`trials: {submit: slurm}`: the whole search in one Slurm allocation, started and waited for from a login node.

Owns submitting, waiting and taking over the result. Inside the allocation the same command runs as anywhere, and the
plan folder on the shared file system is what comes of it; `--resume` goes on from it as from any other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import planner
from planner.app.progress import Progress, SearchOutline
from planner.app.report import load_report
from planner.app.requests import FROM_ENVIRONMENT, PlanRequest, PlanResult
from planner.catalog import load_gpu, usual_node
from planner.emit.search_batch import SearchBatch, render_search_batch
from planner.errors import InputError, NoFeasiblePlan, NotExpressible, PlannerError, TrialsUnavailable
from planner.jobfile import JobFile
from planner.jobfile.quantities import text_of_duration
from planner.rundir import RunDir
from planner.spec import DeviceKind
from planner.spec.codec import from_plain

IN_ALLOCATION = "SLURM_JOB_ID"
STUDY_URL = "MESHPLAN_STUDY_URL"  # the variable that carries --storage or --join into the allocation
NOT_PASSED = {  # of a request, with the reason
    "cluster": "several clusters are refused: each would be a search on nodes of its own",
    "dry_run": "a dry run submits nothing",
}
POLL_S = 1.0
_TAIL_CHARS = 2000
_ENDS: dict[int, type[PlannerError]] = {
    kind.exit_code: kind for kind in (InputError, NoFeasiblePlan, TrialsUnavailable, NotExpressible)
}


def is_to_be_submitted(job_file: JobFile, request: PlanRequest) -> bool:
    """Whether this process only submits: the job says so, and it is not itself what was submitted."""
    return job_file.schema.trials.submit == "slurm" and not request.dry_run and IN_ALLOCATION not in os.environ


def submit_search(request: PlanRequest, job_file: JobFile, *, console: Progress) -> PlanResult:
    """Submit, wait for the end and read the plan folder. Raises what the search inside the allocation raised."""
    if shutil.which("sbatch") is None:
        raise TrialsUnavailable(
            "the search cannot be submitted: sbatch is not on the PATH",
            why="the job says trials.submit: slurm, and this is no node of a Slurm cluster",
            fix="plan on a login node, or add --set trials.submit=here",
        )
    if request.cluster:
        raise InputError(
            "several candidate clusters cannot be submitted as one Slurm job",
            why="each is a search of its own, on nodes of its own",
            fix="submit a job with one cluster, or add --set trials.submit=here",
        )
    out_dir = request.out_dir.absolute()
    place = out_dir.with_name(f"{out_dir.name}.slurm")
    place.mkdir(parents=True, exist_ok=True)
    answer, log, script = place / "answer.json", place / "search.log", place / "search.sbatch"
    answer.unlink(missing_ok=True)
    batch = SearchBatch(
        name=out_dir.name,
        slurm=job_file.schema.launch.slurm or job_file.schema.slurm,
        gpus=_gpus_of_one_node(job_file),
        command=plan_command(request),
        folder=str(Path.cwd()),
        log=str(log),
        answer=str(answer),
    )
    _write_privately(script, render_search_batch(batch))
    console.stage(f"submit the search to Slurm (its output: {log})")
    words, environment = ["sbatch", "--wait", "--parsable"], dict(os.environ)
    if request.storage:
        words.append(f"--export={exported_variables(batch.slurm)}")
        environment[STUDY_URL] = request.storage
    exit_code = _submit_and_wait([*words, str(script)], environment, out_dir=out_dir, console=console)
    return _result(out_dir, _read_answer(answer), exit_code=exit_code, log=log)


def plan_command(request: PlanRequest) -> tuple[str, ...]:
    """The planner's own command line that asks for the same, wherever it is run on the same file system. The study's
    URL may hold a password: it is named by a variable of the environment."""
    words = [sys.executable, "-m", "planner", "plan", str(request.job_path.absolute()), "--json"]
    words += ["--out", str(request.out_dir.absolute())]
    for override in request.overrides:
        words += ["--set", override]
    options = {
        "--trials": request.trial_mode.value if request.trial_mode is not None else None,
        "--max-trials": request.max_trials,
        "--time-budget": text_of_duration(request.time_budget_s) if request.time_budget_s is not None else None,
        "--seed": request.seed,
        "--join" if request.join else "--storage": f"{FROM_ENVIRONMENT}{STUDY_URL}" if request.storage else None,
        "--pin": request.pin or None,
        "--survive": request.survive or None,
    }
    for name, value in options.items():
        if value is not None:
            words += [name, str(value)]
    flags = {
        "--resume": request.resume,
        "--no-validate": not request.validate,
        "--no-site-defaults": not request.site_defaults,
        "--profile": request.profile,
    }
    words += [name for name, wanted in flags.items() if wanted]
    root = Path(planner.__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return tuple(words)
    return ("env", f"PYTHONPATH={os.pathsep.join(filter(None, (str(root), os.environ.get('PYTHONPATH'))))}", *words)


def exported_variables(slurm: tuple[tuple[str, str], ...]) -> str:
    """sbatch's `--export` that also hands on the study's URL, by name: its value is in no argument and no file. What
    the job exports stays exported; NONE and NIL export nothing beside."""
    chosen = dict(slurm).get("export", "ALL")
    return STUDY_URL if chosen.upper() in ("NONE", "NIL") else f"{chosen},{STUDY_URL}"


def _gpus_of_one_node(job_file: JobFile) -> int:
    """GPUs to ask Slurm for: those of one node of the job, whose trials one machine runs. 0 for a job on CPUs."""
    section = job_file.schema.cluster
    if section.gpus_per_node is not None:
        is_cpu = section.gpu is not None and section.gpu != "auto" and load_gpu(section.gpu).device is DeviceKind.CPU
        return 0 if is_cpu else section.gpus_per_node
    if section.gpu is None or section.gpu == "auto":
        raise InputError(
            "trials.submit: slurm needs to know how many GPUs a node has",
            why="the allocation is asked for before any node is looked at",
            fix="write gpus_per_node under cluster:",
        )
    usual = usual_node(section.gpu)
    return 0 if load_gpu(section.gpu).device is DeviceKind.CPU or usual is None else usual.gpus_per_node


def _write_privately(path: Path, text: str) -> None:
    """For its owner only: a job's settings may hold what is nobody else's business."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _submit_and_wait(words: list[str], environment: dict[str, str], *, out_dir: Path, console: Progress) -> int:
    """sbatch's exit code, which with --wait is that of the job. Ctrl-C cancels the job; what it had tried is kept."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None  # noqa: S101 - it was asked for above
    number = process.stdout.readline().strip().partition(";")[0]
    if number:
        console.note(f"Slurm job {number}; squeue --job {number} shows whether it waits or runs")
    seen = 0
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            seen = _tell_trials(out_dir, seen, console)
    except BaseException:
        if number:
            subprocess.run(["scancel", number], check=False)
        process.terminate()
        raise
    finally:
        process.stdout.close()
    _tell_trials(out_dir, seen, console)
    return process.returncode


def _tell_trials(out_dir: Path, seen: int, console: Progress) -> int:
    """Say which trials have ended since the last look; how many there are now."""
    try:
        trials = RunDir.open(out_dir).read_trials()
    except PlannerError:  # the search has not begun to write there
        return seen
    for trial in trials[seen:]:
        console.trial_ended(trial, best=None)
    return max(seen, len(trials))


def _read_answer(answer: Path) -> dict[str, Any]:
    try:
        document = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _result(out_dir: Path, document: dict[str, Any], *, exit_code: int, log: Path) -> PlanResult:
    if "error" in document:
        kind = _ENDS.get(int(document.get("exit_code", exit_code)), TrialsUnavailable)
        raise kind(str(document["error"]), why=str(document["why"]), fix=str(document["fix"]))
    if exit_code != 0 or "outline" not in document:
        tail = log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:] if log.is_file() else ""
        lines = [line for line in tail.splitlines() if line.strip()]
        raise TrialsUnavailable(
            f"the search in Slurm ended with exit code {exit_code} and gave no answer",
            why=f"the last it said: {lines[-1].strip()}" if lines else "it said nothing: it may not have started",
            fix=f"read {log}; go on from what had ended with --resume",
        )
    report = load_report(out_dir)
    return PlanResult(
        plan_dir=out_dir,
        outline=from_plain(SearchOutline, document["outline"]),
        plan=report.plan,
        report=report,
        files=tuple(map(Path, document.get("files", ()))),
    )
