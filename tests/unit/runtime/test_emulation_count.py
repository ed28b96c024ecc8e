"""Times and counts from recorded steps, on a timeline whose marks a test chooses."""

from __future__ import annotations

import pytest

from planner.runtime.emulation_count import emulation_report, ordered_calls, own_cost_s
from planner.runtime.emulation_record import CallKind, Recorder
from planner.spec import CollectiveKind, EmulationReport, Phase

GATHER = CallKind(kind=CollectiveKind.ALL_GATHER, dtype="bfloat16", num_bytes=1024, ranks=(0, 1, 2, 3))
REDUCE = CallKind(kind=CollectiveKind.ALL_REDUCE, dtype="float32", num_bytes=64, ranks=(0, 2))


class ScriptedTimeline:
    """A device whose clock stands still until the test moves it; `is_main` says where work goes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_main = True

    def mark(self) -> float:
        return self.now_s

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def on_main_stream(self) -> bool:
        return self.is_main

    def rest(self) -> None:
        pass


class Run:
    """A recorder and the moves that a session and its groups make."""

    def __init__(self) -> None:
        self.timeline = ScriptedTimeline()
        self.recorder = Recorder(self.timeline)

    def phase(self, phase: Phase, seconds: float = 0.0) -> None:
        self.recorder.enter(phase)
        self.work(seconds)

    def work(self, seconds: float) -> None:
        self.timeline.now_s += seconds

    def call(self, what: CallKind, *, overlap_s: float = 0.0, own_s: float = 0.0, waits: bool = True) -> None:
        call = self.recorder.began(what, is_asynchronous=overlap_s > 0)
        if own_s:
            self.work(own_s)
            self.recorder.launched(call)
        self.work(overlap_s)
        if waits:
            self.recorder.waited(call)

    def report(self, *, micro_batches: int, num_steps: int = 1) -> EmulationReport:
        return emulation_report(self.recorder, rank=0, world_size=4, micro_batches=micro_batches, num_steps=num_steps)


def plain_step(run: Run, *, micro_batches: int = 2, speed: float = 1.0) -> None:
    """Each micro-batch: forward 1 s with a gather, backward 2 s; the last reduces and takes a step of 0.5 s."""
    for number in range(micro_batches):
        run.phase(Phase.FORWARD, 1.0 * speed)
        run.call(GATHER)
        run.phase(Phase.BACKWARD, 2.0 * speed)
        if number == micro_batches - 1:
            run.call(REDUCE)
        run.phase(Phase.OPTIMIZER_STEP)
    run.work(0.5 * speed)
    run.recorder.step_done()


def counts_of(report: EmulationReport) -> dict[tuple[CollectiveKind, Phase, bool], int]:
    return {(row.kind, row.phase, row.each_micro_batch): row.count for row in report.collectives}


def test_plain_step_is_split_into_micro_batches_and_an_end() -> None:
    run = Run()
    run.phase(Phase.BUILD_ENGINE, 100.0)
    run.call(REDUCE)  # while building: not of the step
    plain_step(run)
    report = run.report(micro_batches=2)
    assert (report.micro_batch_s, report.step_end_s, report.own_s) == (3.0, 0.5, 0.0)
    assert counts_of(report) == {
        (CollectiveKind.ALL_GATHER, Phase.FORWARD, True): 1,
        (CollectiveKind.ALL_REDUCE, Phase.BACKWARD, False): 1,
    }
    assert report.groups == ((0, 1, 2, 3), (0, 2))
    assert [report.groups[row.group] for row in report.collectives] == [(0, 1, 2, 3), (0, 2)]
    assert ordered_calls(run.recorder) == (GATHER, GATHER, REDUCE)


def test_step_of_one_micro_batch_ends_with_its_optimizer_phase() -> None:
    run = Run()
    plain_step(run, micro_batches=1)
    report = run.report(micro_batches=1)
    assert (report.micro_batch_s, report.step_end_s) == (3.0, 0.5)
    assert counts_of(report)[CollectiveKind.ALL_REDUCE, Phase.BACKWARD, True] == 1


def test_pipeline_step_is_split_where_its_last_micro_batch_ends() -> None:
    run = Run()
    run.phase(Phase.TRAIN_BATCH)
    for _ in range(4):
        run.call(GATHER)
        run.work(0.25)
    run.phase(Phase.OPTIMIZER_STEP, 0.1)
    run.phase(Phase.OPTIMIZER_STEP, 0.2)
    run.call(REDUCE)
    run.recorder.step_done()
    report = run.report(micro_batches=4)
    assert (report.micro_batch_s, report.step_end_s) == (pytest.approx(0.25), pytest.approx(0.3))
    assert counts_of(report) == {
        (CollectiveKind.ALL_GATHER, Phase.TRAIN_BATCH, True): 1,
        (CollectiveKind.ALL_REDUCE, Phase.OPTIMIZER_STEP, False): 1,
    }


def test_what_emulating_itself_took_is_in_no_time() -> None:
    run = Run()
    for _ in range(2):
        run.phase(Phase.FORWARD, 1.0)
        run.call(GATHER, own_s=0.25)
        run.phase(Phase.BACKWARD, 2.0)
        run.phase(Phase.OPTIMIZER_STEP, 0.125)
    run.recorder.step_done()
    report = run.report(micro_batches=2)
    assert (report.micro_batch_s, report.step_end_s, report.own_s) == (3.125, 0.0, 0.5)
    assert own_cost_s(run.recorder) == (0.5,)


def test_overlap_is_from_the_start_to_what_waits() -> None:
    run = Run()
    run.phase(Phase.FORWARD)
    run.call(GATHER, overlap_s=0.5, own_s=0.125)
    run.call(GATHER, overlap_s=0.25)
    run.phase(Phase.OPTIMIZER_STEP)
    run.recorder.step_done()
    (row,) = run.report(micro_batches=1).collectives
    assert (row.count, row.overlap_s) == (2, 0.375)


def test_side_streams_own_collective_is_waited_for_at_the_end_of_its_phase() -> None:
    run = Run()
    run.phase(Phase.BACKWARD, 1.0)
    run.timeline.is_main = False
    run.call(REDUCE)  # blocking, but only the side stream
    run.timeline.is_main = True
    run.work(0.75)
    run.phase(Phase.OPTIMIZER_STEP, 0.5)
    run.recorder.step_done()
    (row,) = run.report(micro_batches=1).collectives
    assert row.overlap_s == 0.75


def test_report_is_of_the_timed_steps_and_takes_medians() -> None:
    run = Run()
    for speed in (50.0, 1.0, 3.0, 2.0):  # the first is the warm-up
        plain_step(run, speed=speed)
    report = run.report(micro_batches=2, num_steps=3)
    assert (report.micro_batch_s, report.step_end_s) == (6.0, 1.0)
