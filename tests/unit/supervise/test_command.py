"""The command of an attempt: the launch script's own, with another task, another config, and where it goes on."""

from __future__ import annotations

from planner.supervise.command import Variation, value_of, vary_command

COMMAND = (
    *("python", "-m", "torch.distributed.run", "--standalone", "-m", "planner.runtime.train"),
    *("--task", "task.json", "--deepspeed-config", "ds_config.json", "--steps", "9"),
)


def test_vary_command_plan_itself_is_only_told_where_to_leave_word() -> None:
    varied = vary_command(COMMAND, Variation(folder="", attempt_dir="logs/run-0001", resume=False))
    assert varied == (*COMMAND, "--supervised", "logs/run-0001")


def test_vary_command_fallback_goes_on_with_its_own_files() -> None:
    varied = vary_command(COMMAND, Variation(folder="fallbacks/1-x", attempt_dir="d", resume=True, end_step=13))
    assert value_of(varied, "--task") == "fallbacks/1-x/task.json"
    assert value_of(varied, "--deepspeed-config") == "fallbacks/1-x/ds_config.json"
    assert value_of(varied, "--steps") is None and value_of(varied, "--end-step") == "13"
    assert varied.count("--resume") == 1 and varied[-2:] == ("--supervised", "d")


def test_vary_command_end_step_takes_the_place_of_steps_with_an_equals_sign() -> None:
    varied = vary_command(("x", "--steps=9", "y"), Variation(folder="", attempt_dir="d", resume=False, end_step=9))
    assert varied == ("x", "y", "--end-step", "9", "--supervised", "d")


def test_vary_command_takes_options_with_an_equals_sign_and_adds_no_second_resume() -> None:
    varied = vary_command(("x", "--task=task.json", "--resume"), Variation(folder="f", attempt_dir="d", resume=True))
    assert varied == ("x", "--task=f/task.json", "--resume", "--supervised", "d")
