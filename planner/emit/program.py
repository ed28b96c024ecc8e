"""What the ranks run, as shell text: the reference trainer, or the user's own command with its slots filled.

Owns turning words into text in which only the plan folder is looked up at run time. Leaves reading the command to
`command`.
"""

from __future__ import annotations

import shlex

from planner.emit.command import SLOT, OwnCommand, read_command, require_reachable, slot_values
from planner.errors import InputError, did_you_mean
from planner.spec import Candidate, JobSpec, Launcher, ScriptCall
from planner.spec._record import record
from planner.spec.script import CONFIG_MARK, TASK_MARK

# What a start script's header says may follow it.
TRAINER_OPTIONS = "[options of python -m planner.runtime.train, such as --steps 10, or --resume]"

RUNTIME_FILES = {"deepspeed_config": "ds_config.json", "task": "task.json"}
_MARKS = {"deepspeed_config": CONFIG_MARK, "task": TASK_MARK}


@record
class Program:
    """Shell text of a Python program: a module, or a script, and its arguments. `in_plan_dir`: it starts there."""

    module: str  # "" for a script
    script: str  # "" for a module
    arguments: str
    in_plan_dir: bool
    plain_arguments: bool  # no argument needs quoting, whatever shell reads it
    supervised: bool = False  # the supervisor knows how to start it again with less memory
    uses_accelerate: bool = False
    accelerate_options: str = ""
    folder: str = ""  # where it starts, absolute; "" with `in_plan_dir`, or where the start script is called from

    def supervisor_words(self, nodes: int, node_rank: str) -> str:
        """What stands before the launcher on each node; `node_rank` is shell text. "" for the user's own program."""
        if not self.supervised:
            return ""
        place = f"--nodes {nodes} --node-rank {node_rank} " if nodes > 1 else ""
        return f'"$PYTHON" -m planner supervise {place}"$PLAN_DIR" -- '

    @property
    def torchrun_words(self) -> str:
        start = f"-m {self.module}" if self.module else self.script
        return f"{self.accelerate_options} {start} {self.arguments}".strip()

    @property
    def deepspeed_words(self) -> str:
        """As torchrun's, with DeepSpeed's word for a module. The reference trainer reads LOCAL_RANK from the
        environment, so it is not passed the argument that DeepSpeed would add."""
        start = f"--module {self.module}" if self.module else self.script
        no_argument = "--no_local_rank " if self.in_plan_dir else ""
        return f"{no_argument}{start} {self.arguments}".rstrip()


def program_of(job: JobSpec, candidate: Candidate) -> Program:
    """The program of the job's launch. Raises InputError for a command that cannot be read, and NotExpressible when
    the plan's layout would not reach the user's own script."""
    if not job.launch.command:
        return Program(
            module="planner.runtime.train",
            script="",
            arguments="--task task.json --deepspeed-config ds_config.json",
            in_plan_dir=True,
            plain_arguments=True,
            supervised=True,
        )
    command = read_command(job.launch)
    require_reachable(job.launch, candidate)
    values = slot_values(job, candidate)
    start, *rest = command.words
    return Program(
        module=_fill(start, values) if command.is_module else "",
        script="" if command.is_module else _fill(start, values),
        arguments=" ".join(_fill(word, values) for word in rest),
        in_plan_dir=False,
        plain_arguments=all(_is_plain(word, values) for word in rest),
        uses_accelerate=command.uses_accelerate,
        accelerate_options=" ".join(_fill(word, values) for word in command.accelerate_words),
        folder=job.launch.folder,
    )


def script_call(job: JobSpec, candidate: Candidate) -> ScriptCall | None:
    """The user's own program as a trial of `candidate` runs it; None where the job has none. Raises as `program_of`."""
    if not job.launch.command:
        return None
    command: OwnCommand = read_command(job.launch)
    require_reachable(job.launch, candidate)
    values = {**slot_values(job, candidate), **_MARKS}

    def fill(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("".join(text for _flag, text in _pieces(word, values, files=_MARKS)) for word in words)

    return ScriptCall(
        words=fill(command.words),
        folder=job.launch.folder or ".",
        is_module=command.is_module,
        uses_accelerate=command.uses_accelerate,
        accelerate_words=fill(command.accelerate_words),
        passes_local_rank=job.launch.launcher is Launcher.DEEPSPEED and not command.uses_accelerate,
    )


_SHELL_FILES = {name: f'"$PLAN_DIR"/{file}' for name, file in RUNTIME_FILES.items()}


def _pieces(word: str, values: dict[str, str], *, files: dict[str, str]) -> list[tuple[bool, str]]:
    """The word as (is looked up at run time, text) pieces."""
    pieces: list[tuple[bool, str]] = []
    end = 0
    for match in SLOT.finditer(word):
        pieces.append((False, word[end : match.start()]))
        end = match.end()
        name = match.group(1)
        if name is None:
            pieces.append((False, match.group()[0]))
        elif name in files:
            pieces.append((True, files[name]))
        elif name in values:
            pieces.append((False, values[name]))
        else:
            raise InputError(
                f"launch.command has an unknown slot {{{name}}}",
                why="a name in braces is filled with a value of the plan",
                fix=f"{did_you_mean(name, [*RUNTIME_FILES, *values])} Write {{{{{name}}}}} for the braces themselves.",
            )
    return [*pieces, (False, word[end:])]


def _fill(word: str, values: dict[str, str]) -> str:
    """Shell text of one word: run-time pieces stand in double quotes, all else is quoted by shlex."""
    pieces = _pieces(word, values, files=_SHELL_FILES)
    if not any(at_run_time for at_run_time, _text in pieces):
        return shlex.quote("".join(text for _flag, text in pieces))
    return "".join(text if flag else (shlex.quote(text) if text else "") for flag, text in pieces)


def _is_plain(word: str, values: dict[str, str]) -> bool:
    pieces = _pieces(word, values, files=_SHELL_FILES)
    return all(flag or not text or shlex.quote(text) == text for flag, text in pieces)
