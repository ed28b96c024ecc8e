"""The job file checks `launch.command` before any trial runs; what it takes has to be what is filled in."""

from __future__ import annotations

from planner.emit import command, slurm
from planner.emit.kubernetes_options import OPTIONS
from planner.emit.program import RUNTIME_FILES, slot_values
from planner.jobfile.launch_schema import COMMAND_SLOTS, KUBERNETES_KEYS, SHELL_OPERATORS, SLURM_OWNED
from tests.unit.emit.samples import make_candidate, make_job


def test_slots_the_job_file_accepts_are_those_that_are_filled() -> None:
    assert set(COMMAND_SLOTS) == {*RUNTIME_FILES, *slot_values(make_job(), make_candidate())}


def test_kubernetes_keys_the_job_file_accepts_are_those_that_are_read() -> None:
    assert set(KUBERNETES_KEYS) == set(OPTIONS)


def test_what_the_job_file_refuses_of_command_and_slurm_is_what_emit_refuses() -> None:
    assert set(SHELL_OPERATORS) == command.SHELL_OPERATORS
    assert set(SLURM_OWNED) == slurm.OWNED
