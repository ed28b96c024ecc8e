"""The use case `supervise`: run a plan's launch command, and carry it through running out of memory.

Owns joining the supervisor with the plan's fallbacks, the diagnosis and the signals of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from planner.app.diagnose import diagnose_logs
from planner.app.diagnose_request import DiagnoseRequest
from planner.app.requests import SuperviseRequest
from planner.errors import InputError, PlannerError
from planner.rundir import RunDir, names
from planner.rundir.atomic import write_whole
from planner.supervise.attempt import OUTPUT_LOG, StopFlag
from planner.supervise.command import cannot_start
from planner.supervise.loop import Ports, Supervision, Supervisor, make_logs
from planner.supervise.nodes import Alone, SharedFolder

DIAGNOSIS = "diagnosis.json"
UNDIAGNOSED = "unknown-not-diagnosed"
OFF = "off"  # of MESHPLAN_SUPERVISE
NUM_SHOWN = 3  # pieces of evidence, and fixes


def supervise_run(request: SuperviseRequest) -> int:
    """The exit code of the training, however many starts it took.

    Raises NoFeasiblePlan when it ran out of memory in every way the plan knows, InputError for a folder that is no
    plan and a command that cannot be started. With MESHPLAN_SUPERVISE=off the command is run as it is, in place of
    this process.
    """
    if os.environ.get("MESHPLAN_SUPERVISE") == OFF:
        _become(request.command)
    if request.node_rank >= request.nodes:
        raise InputError(
            f"--node-rank {request.node_rank} is none of the run's nodes",
            why=f"--nodes says {request.nodes}, whose ranks are 0 to {request.nodes - 1}",
            fix="correct --node-rank, or --nodes",
        )
    run_dir = RunDir.open(request.plan_dir)
    plan = run_dir.read_plan()
    stop = StopFlag()
    _listen(stop, saves=bool(_checkpoint_dir(run_dir)) and "--no-checkpoint" not in request.command)
    supervision = Supervision(
        plan_dir=run_dir.path,
        command=request.command,
        fallbacks=tuple(fallback.folder for fallback in plan.fallbacks),
        checkpoint_dir=_checkpoint_dir(run_dir),
        environment=dict(os.environ),
        on_stderr=request.on_stderr,
        is_first_node=request.node_rank == 0,
    )
    peers = Alone() if request.nodes == 1 else _peers(run_dir, request, stop)
    ports = Ports(
        diagnose=lambda folder: _diagnose(folder, run_dir.path),
        say=_say,
        pause=lambda seconds: _pause(seconds, stop),
    )
    return Supervisor(supervision, peers, ports, stop).run()


def _checkpoint_dir(run_dir: RunDir) -> str:
    """Where the trainer saves, as its task says: from the plan folder, wherever that was moved. "" for nowhere."""
    try:
        named = json.loads(run_dir.read_text(names.TASK))["training"]["checkpoint_dir"]
        if not isinstance(named, str):
            raise TypeError("training.checkpoint_dir is no text")
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise InputError(
            f"{run_dir.path / names.TASK} is damaged",
            why=f"training.checkpoint_dir cannot be read from it ({type(problem).__name__}: {problem})",
            fix="restore the file, or plan again into a new folder",
        ) from problem
    return str(run_dir.path / named) if named else ""


def _become(command: tuple[str, ...]) -> NoReturn:
    """The launch script's own command in place of this process. InputError when it cannot be started."""
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the user asked for
    except OSError as problem:
        raise cannot_start(command, problem) from problem


def _peers(run_dir: RunDir, request: SuperviseRequest, stop: StopFlag) -> SharedFolder:
    logs = make_logs(run_dir.path)
    return SharedFolder(
        logs, node_rank=request.node_rank, nodes=request.nodes, say=_say, is_stopped=lambda: stop.times > 0
    )


def _listen(stop: StopFlag, *, saves: bool) -> None:
    """Once: the ranks save and end; twice: they end now. Set here, so that Python's KeyboardInterrupt never cuts in."""

    first = "what is done is saved after the step that runs" if saves else "ending after the step that runs"

    def told(_number: int, _frame: FrameType | None) -> None:
        stop.tell()
        _say(f"told to stop: {first} (once more: end at once)" if stop.times == 1 else "ending at once")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)


def _say(text: str) -> None:
    print(f"[supervisor] {text}", file=sys.stderr, flush=True)


def _pause(seconds: float, stop: StopFlag) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop.times:
        time.sleep(0.2)


def _diagnose(folder: Path, plan_dir: Path) -> str:
    """The cause in one word; the whole diagnosis is kept beside the logs, and its gist is said."""
    paths = (folder / OUTPUT_LOG, *sorted(folder.glob("*.pickle")))
    try:
        document = diagnose_logs(DiagnoseRequest(paths=paths, plan_dir=plan_dir)).document
    except PlannerError as problem:  # a run that can go on shall not end because its log cannot be read
        _say(f"no diagnosis: {problem.error}: {problem.why}")
        return UNDIAGNOSED
    write_whole(folder / DIAGNOSIS, (json.dumps(document, indent=2) + "\n").encode())
    _say(f"diagnosis: {document['cause']} ({document['confidence']:.0%}); all of it in {folder / DIAGNOSIS}")
    for evidence in document["evidence"][:NUM_SHOWN]:
        _say(f"  {evidence}")
    for fix in document["fixes"][:NUM_SHOWN]:
        _say(f"  would help: {json.dumps(fix['change'])}: {fix['why']}")
    return str(document["cause"])
