"""Watches a script that a launcher starts cold, for `planner verify`: the emitted start script runs as it is.

    MESHPLAN_WATCH=watch.json PYTHONPATH=folder-with-a-sitecustomize bash launch.sh

Owns what happens in each Python process that starts: nothing, unless it is a rank. Then it imports ahead what a trial's
ranks inherit (so that memory is counted from the same start), wraps `deepspeed.initialize`, and lets the script begin.
Its end leaves `rank_N.json` beside the watch file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from planner.runtime.whole_file import write_whole
from planner.spec import Phase, RankReport, TrialTask
from planner.spec.codec import from_plain, to_plain
from planner.spec.worker import RankFailure, RankResult

WATCH_VARIABLE = "MESHPLAN_WATCH"
_WATCHED_VARIABLE = "MESHPLAN_WATCHED"  # set in a rank, so that Python programs it starts are left alone


class SilentClock:
    """Remembers when building began; nobody listens to phases here."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._engine_s = self._began_s

    def enter(self, phase: Phase) -> None:
        if phase is Phase.BUILD_ENGINE:
            self._engine_s = time.perf_counter()

    def step_done(self) -> None:
        return

    def building_times_s(self) -> tuple[float, float]:
        return self._engine_s - self._began_s, 0.0


def attach(environment: MutableMapping[str, str]) -> None:
    """Watch this process if it is a rank of the run that is verified."""
    watch_file = environment.get(WATCH_VARIABLE)
    if not watch_file or "RANK" not in environment or _WATCHED_VARIABLE in environment:
        return
    environment[_WATCHED_VARIABLE] = str(os.getpid())
    _watch(Path(watch_file), environment)


def _watch(watch_file: Path, environment: MutableMapping[str, str]) -> None:
    document = json.loads(watch_file.read_text(encoding="utf-8"))
    task = from_plain(TrialTask, document["task"])
    environment.setdefault("DS_ACCELERATOR", str(task.device))

    # Keep: here and not above, because most processes that load this module are no ranks and must stay light.
    from planner.runtime.measure import SectionPeaks, open_meter
    from planner.runtime.preload import import_ahead, preload_deepspeed, preload_model_code
    from planner.runtime.script_rank import ScriptSeat, claim_cpu, script_report
    from planner.runtime.script_run import Seat
    from planner.runtime.script_watch import ScriptWatch

    preload_deepspeed()
    preload_model_code(task.model.model_type)
    for module in document["modules"]:
        import_ahead(module)
    claim_cpu(task.device)
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    meter = open_meter(task.device, local_rank=int(environment.get("LOCAL_RANK", "0")), gpus_before=())
    clock = SilentClock()
    sections: list[SectionPeaks] = []
    place = ScriptSeat(
        seat=Seat(rank=rank, world_size=world_size, master_port=0),
        scratch_dir=str(watch_file.parent),
        log=Path(),
        start_s=0.0,
        on_report=lambda report: _leave(watch_file.parent, rank, RankResult(report=report)),
        on_failure=lambda error: _leave(watch_file.parent, rank, _failed(error)),
    )

    def enough(watch: Any) -> NoReturn:
        place.on_report(script_report(watch, meter, clock, built=sections[0], place=place))

    ScriptWatch(
        task,
        clock,
        on_engine=lambda: sections.append(meter.end_section()),
        on_enough=enough,
        on_problem=place.on_failure,
    ).install()


def _failed(error: BaseException) -> RankResult:
    print(f"[verify] {error}", file=sys.stderr)
    failure = RankFailure(exception=type(error).__name__, message=str(error), failed_at_s=time.monotonic())
    return RankResult(failure=failure)


def _leave(folder: Path, rank: int, result: RankResult) -> NoReturn:
    """Write the rank's file whole, wait for the peers, and end the process: a launcher sees all ranks end well."""
    write_whole(folder / f"rank_{rank}.json", json.dumps(to_plain(result)))
    if result.report is not None:
        from torch import distributed

        if distributed.is_initialized() and distributed.get_world_size() > 1:
            distributed.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if isinstance(result.report, RankReport) else 1)
