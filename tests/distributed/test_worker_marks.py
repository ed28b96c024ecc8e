"""Marks that a child writes are read by its parent, even after it died without a word."""

from __future__ import annotations

import os

from planner.runtime.worker_marks import TrialMarks
from planner.spec import Phase


def test_marks_of_a_killed_child_tell_where_it_was() -> None:
    marks = TrialMarks(2)
    pens = [marks.of_rank(rank) for rank in range(2)]
    child = os.fork()
    if child == 0:
        pens[1].enter(Phase.FORWARD)
        pens[1].step_done()
        pens[1].step_done()
        pens[1].enter(Phase.BACKWARD)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert marks.read(1) == (Phase.BACKWARD, 2)
    assert marks.read(0) == (Phase.START, 0)
    marks.close()


def test_rank_furthest_behind_is_by_steps_then_by_phase() -> None:
    marks = TrialMarks(3)
    pens = [marks.of_rank(rank) for rank in range(3)]
    for pen in pens:
        pen.step_done()
    pens[0].step_done()
    pens[1].enter(Phase.OPTIMIZER_STEP)
    pens[2].enter(Phase.BACKWARD)
    assert marks.furthest_behind() == (Phase.BACKWARD, 1)
    marks.close()
