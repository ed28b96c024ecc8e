"""Whatever a path or a value holds reaches the started program unchanged: shown by running the scripts under bash."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from planner.emit import LaunchPaths, render_launch
from planner.emit.command import SHELL_OPERATORS
from planner.emit.shell import comment
from planner.spec import Launcher, LaunchSpec
from tests.unit.emit.fakes import FakeMachine
from tests.unit.emit.samples import make_candidate, make_job

NASTY = "a Z9'\"$`\\\n\t*?;&|<>(){}[]~#!%=@:,-é日"
values = st.text(st.sampled_from(NASTY), max_size=12)
folder_names = values.filter(lambda name: name not in ("", ".", ".."))


def escaped(word: str) -> str:
    return word.replace("{", "{{").replace("}", "}}")


@settings(max_examples=40, deadline=None)
@given(
    folder=folder_names,
    words=st.lists(values, max_size=3),
    value=values,
    made_with=values,
    launcher=st.sampled_from([Launcher.TORCHRUN, Launcher.DEEPSPEED, Launcher.SLURM]),
    own_command=st.booleans(),
    fixed_plan_dir=st.booleans(),
)
@example("it's $(touch x)\n", ["`touch x`", '"$@"', ""], "$HOME\n", "\ntouch x", Launcher.TORCHRUN, True, False)
@example("-n", ["--", "~"], "'", "'", Launcher.SLURM, True, True)
def test_any_folder_and_value_reaches_the_program_as_it_is(
    folder: str,
    words: list[str],
    value: str,
    made_with: str,
    launcher: Launcher,
    own_command: bool,
    fixed_plan_dir: bool,
) -> None:
    assume(not SHELL_OPERATORS & set(words))
    own = shlex.join(["-m", "train", "{deepspeed_config}", "--also={task}", *map(escaped, words)])
    command = own if own_command else ""
    job = make_job(launch=LaunchSpec(command=command, environment=(("VALUE", value),)))
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        plan = root / folder
        (plan / "launch").mkdir(parents=True)
        paths = LaunchPaths(plan_dir=str(plan) if fixed_plan_dir else "", made_with=("planner", made_with))
        for file in render_launch(job, make_candidate(data=2), launcher=launcher, paths=paths):
            (plan / file.path).write_text(file.text, newline="")
        machine = FakeMachine(root / "machine")
        done = machine.run(plan / "launch.sh", "--more", value, cwd=root)
        assert done.returncode == 0, done.stderr
        (call,) = machine.take_calls()
    of_own_command = [str(plan / "ds_config.json"), f"--also={plan / 'task.json'}", *words]
    arguments = [*(of_own_command if own_command else ["--deepspeed-config", "ds_config.json"]), "--more", value]
    assert call["argv"][-len(arguments) :] == arguments
    assert call["env"]["VALUE"] == value
    assert call["cwd"] == str(root if own_command else plan)


@given(st.text())
def test_comment_of_any_text_is_one_line_of_printable_characters(text: str) -> None:
    line = comment(text)
    assert line.startswith("#") and line.isprintable() and line.splitlines() == [line]
