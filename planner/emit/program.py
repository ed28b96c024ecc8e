"""What the ranks run: the reference trainer, or the user's own command with its slots filled.

Owns reading `launch.command` and turning it into shell text in which only the plan folder is looked up at run time.
"""

from __future__ import annotations

import re
import shlex

from planner.errors import InputError, NotExpressible, did_you_mean
from planner.spec import Candidate, CheckpointingKind, CrossEntropy, JobSpec, TorchCompile
from planner.spec._record import record

# What a start script's header says may follow it.
TRAINER_OPTIONS = "[options of python -m planner.runtime.train, such as --steps 10, or --resume]"

_SLOT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>"})
_PYTHON = re.compile(r"(.*/)?python[0-9.]*\Z")
RUNTIME_FILES = {"deepspeed_config": "ds_config.json", "task": "task.json"}


@record
class Program:
    """Shell text of a Python program: a module, or a script, and its arguments. `in_plan_dir`: it starts there."""

    module: str  # "" for a script
    script: str  # "" for a module
    arguments: str
    in_plan_dir: bool
    plain_arguments: bool  # no argument needs quoting, whatever shell reads it
    supervised: bool = False  # the supervisor knows how to start it again with less memory

    def supervisor_words(self, nodes: int, node_rank: str) -> str:
        """What stands before the launcher on each node; `node_rank` is shell text. "" for the user's own program."""
        if not self.supervised:
            return ""
        place = f"--nodes {nodes} --node-rank {node_rank} " if nodes > 1 else ""
        return f'"$PYTHON" -m planner supervise {place}"$PLAN_DIR" -- '

    @property
    def torchrun_words(self) -> str:
        start = f"-m {self.module}" if self.module else self.script
        return f"{start} {self.arguments}".rstrip()

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
    words = _words_of(job.launch.command)
    _require_reachable(job.launch.command, candidate)
    module = words[0] == "-m"
    first, rest = (words[1], words[2:]) if module else (words[0], words[1:])
    values = slot_values(job, candidate)
    start = _fill(first, values)
    return Program(
        module=start if module else "",
        script="" if module else start,
        arguments=" ".join(_fill(word, values) for word in rest),
        in_plan_dir=False,
        plain_arguments=all(_is_plain(word, values) for word in rest),
    )


def slot_values(job: JobSpec, candidate: Candidate) -> dict[str, str]:
    """What may stand in braces in `launch.command`, beside `{deepspeed_config}` and `{task}`."""
    layout, batch = candidate.layout, candidate.batch
    return {
        "global_batch_size": str(batch.global_batch_size),
        "micro_batch_size": str(batch.micro_batch_size),
        "gradient_accumulation_steps": str(batch.gradient_accumulation_steps),
        "data_parallel_size": str(layout.data_parallel_size),
        "tensor_parallel_size": str(layout.tensor_parallel_size),
        "pipeline_parallel_size": str(layout.pipeline_parallel_size),
        "world_size": str(layout.world_size),
        "zero_stage": str(candidate.zero_stage),
        "precision": candidate.precision.value,
        "activation_checkpointing": str(candidate.activation_checkpointing),
        "attention": candidate.attention.value,
        "torch_compile": candidate.tuning.torch_compile.value,
        "cross_entropy": candidate.tuning.cross_entropy.value,
        "seq_len": str(job.training.seq_len),
    }


def _words_of(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise _command_error(f"launch.command cannot be read: {problem}", "a quotation is not closed") from None
    if any("\0" in word for word in words):
        raise _command_error("launch.command holds a NUL character", "no process can be given one")
    operators = [word for word in words if word in SHELL_OPERATORS]
    if operators:
        why = "it is one Python program with its arguments, not a line of shell"
        raise _command_error(f"launch.command holds the shell operator {operators[0]!r}", why)
    if words and _PYTHON.match(words[0]):
        words = words[1:]
    if not words or words == ["-m"] or (words[0].startswith("-") and words[0] != "-m"):
        raise _command_error("launch.command names no Python script or module", f"it reads {command!r}")
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        why = "variables are set in launch.environment"
        raise _command_error(f"launch.command starts with a variable: {words[0]!r}", why)
    if "{deepspeed_config}" not in command:
        why = "without the slot {deepspeed_config} the script never sees the planned config"
        raise _command_error("launch.command does not take the DeepSpeed config", why)
    return words


def _command_error(error: str, why: str) -> InputError:
    return InputError(error, why=why, fix='write it like: command: "train.py --deepspeed {deepspeed_config}"')


def _require_reachable(command: str, candidate: Candidate) -> None:
    """Refuse a layout that DeepSpeed's JSON cannot carry and the command does not ask for."""
    layout = candidate.layout
    needs = (
        ("tensor_parallel_size", layout.tensor_parallel_size > 1, layout.tensor_parallel_size, "1"),
        ("pipeline_parallel_size", layout.pipeline_parallel_size > 1, layout.pipeline_parallel_size, "1"),
        (
            "activation_checkpointing",
            candidate.activation_checkpointing.kind is not CheckpointingKind.NONE,
            candidate.activation_checkpointing,
            "none",
        ),
        (
            "torch_compile",
            candidate.tuning.torch_compile is not TorchCompile.NONE,
            candidate.tuning.torch_compile,
            "none",
        ),
        (
            "cross_entropy",
            candidate.tuning.cross_entropy is not CrossEntropy.WHOLE,
            candidate.tuning.cross_entropy,
            "whole",
        ),
    )
    for slot, needed, value, neutral in needs:
        if needed and f"{{{slot}}}" not in command:
            raise NotExpressible(
                f"the plan's {slot} {value} would not reach the script of launch.command",
                why="DeepSpeed's JSON does not carry it; the program has to do it",
                fix=f"pass it on with the slot {{{slot}}} in launch.command, or set search.{slot}: [{neutral}]",
            )


def _pieces(word: str, values: dict[str, str]) -> list[tuple[bool, str]]:
    """The word as (is looked up at run time, text) pieces."""
    pieces: list[tuple[bool, str]] = []
    end = 0
    for match in _SLOT.finditer(word):
        pieces.append((False, word[end : match.start()]))
        end = match.end()
        name = match.group(1)
        if name is None:
            pieces.append((False, match.group()[0]))
        elif name in RUNTIME_FILES:
            pieces.append((True, f'"$PLAN_DIR"/{RUNTIME_FILES[name]}'))
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
    pieces = _pieces(word, values)
    if not any(at_run_time for at_run_time, _text in pieces):
        return shlex.quote("".join(text for _flag, text in pieces))
    return "".join(text if flag else (shlex.quote(text) if text else "") for flag, text in pieces)


def _is_plain(word: str, values: dict[str, str]) -> bool:
    return all(flag or not text or shlex.quote(text) == text for flag, text in _pieces(word, values))
