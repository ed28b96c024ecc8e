"""`launch.command` as words: the user's program, its arguments, and what of them follows the plan.

Owns reading the command. Its slots stay unfilled here; `program` fills them as shell text for start scripts, and
`script_call` as plain words for trials.
"""

from __future__ import annotations

import re
import shlex

from planner.errors import InputError, NotExpressible
from planner.spec import Candidate, CheckpointingKind, CrossEntropy, JobSpec, LaunchSpec, ScriptKind, TorchCompile
from planner.spec._record import record

SLOT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>"})
_PYTHON = re.compile(r"(.*/)?python[0-9.]*\Z")
_BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "t", "f", "y", "n", "1", "0"})

# Arguments of Hugging Face's Trainer that have to agree with the config: their values are the plan's.
FOLLOWING_ARGUMENTS = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "bf16": "bf16",
    "fp16": "fp16",
    "gradient_checkpointing": "gradient_checkpointing",
}
_BOOLEAN_ARGUMENTS = ("bf16", "fp16", "gradient_checkpointing")

# Options of `accelerate launch` that the plan decides (or that its DeepSpeed config file replaces).
ACCELERATE_OWNED = frozenset(
    {"num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "multi_gpu", "cpu", "tpu"}
    | {"use_fsdp", "use_megatron_lm", "zero_stage", "gradient_accumulation_steps", "gradient_clipping"}
    | {"mixed_precision", "deepspeed_hostfile", "deepspeed_multinode_launcher", "rdzv_backend", "same_network"}
    | {"offload_optimizer_device", "offload_param_device", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"}
)


@record
class Following:
    """An argument whose written value gives way to the plan's."""

    argument: str
    written: str


@record
class OwnCommand:
    """The user's program. `words[0]` is the script, or the module; slots are unfilled."""

    words: tuple[str, ...]
    is_module: bool = False
    uses_accelerate: bool = False
    accelerate_words: tuple[str, ...] = ()
    following: tuple[Following, ...] = ()


def read_command(launch: LaunchSpec) -> OwnCommand:
    """Split the command. Raises InputError for one that cannot be started as one Python program a rank."""
    words = _words_of(launch.command)
    accelerate_words: list[str] = []
    uses_accelerate = _starts_accelerate(words)
    if uses_accelerate:
        accelerate_words, words = _split_accelerate(words[3:] if words[0] == "-m" else words[2:])
    is_module = words[0] == "-m"
    words = words[1:] if is_module else words
    following: tuple[Following, ...] = ()
    if launch.script_kind is ScriptKind.HUGGINGFACE:
        words, following = _follow_plan(words)
    return OwnCommand(
        words=tuple(words),
        is_module=is_module,
        uses_accelerate=uses_accelerate,
        accelerate_words=tuple(accelerate_words),
        following=following,
    )


def require_reachable(launch: LaunchSpec, candidate: Candidate) -> None:
    """Raise NotExpressible for a layout that DeepSpeed's JSON cannot carry and the command does not ask for."""
    layout, tuning = candidate.layout, candidate.tuning
    checkpoints = candidate.activation_checkpointing.kind is not CheckpointingKind.NONE
    needs = (
        ("tensor_parallel_size", layout.tensor_parallel_size > 1, layout.tensor_parallel_size, "1"),
        ("pipeline_parallel_size", layout.pipeline_parallel_size > 1, layout.pipeline_parallel_size, "1"),
        ("activation_checkpointing", checkpoints, candidate.activation_checkpointing, "none"),
        ("torch_compile", tuning.torch_compile is not TorchCompile.NONE, tuning.torch_compile, "none"),
        ("cross_entropy", tuning.cross_entropy is not CrossEntropy.WHOLE, tuning.cross_entropy, "whole"),
    )
    for slot, needed, value, neutral in needs:
        if needed and not reaches_script(launch, slot):
            raise NotExpressible(
                f"the plan's {slot} {value} would not reach the script of launch.command",
                why="DeepSpeed's JSON does not carry it; the program has to do it",
                fix=f"pass it on with the slot {{{slot}}} in launch.command, or set search.{slot}: [{neutral}]",
            )


def reaches_script(launch: LaunchSpec, slot: str) -> bool:
    """Whether the command takes this value of the plan."""
    if f"{{{slot}}}" in launch.command:
        return True
    if slot != "activation_checkpointing":
        return False
    on_command = any(one.argument == "gradient_checkpointing" for one in read_command(launch).following)
    return on_command or "{gradient_checkpointing}" in launch.command


def slot_values(job: JobSpec, candidate: Candidate) -> dict[str, str]:
    """What may stand in braces in `launch.command`, beside `{deepspeed_config}` and `{task}`."""
    layout, batch = candidate.layout, candidate.batch
    checkpoints = candidate.activation_checkpointing.kind is not CheckpointingKind.NONE
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
        "bf16": str(candidate.precision.value == "bf16"),
        "fp16": str(candidate.precision.value == "fp16"),
        "activation_checkpointing": str(candidate.activation_checkpointing),
        "gradient_checkpointing": str(checkpoints),
        "attention": candidate.attention.value,
        "torch_compile": candidate.tuning.torch_compile.value,
        "cross_entropy": candidate.tuning.cross_entropy.value,
        "seq_len": str(job.training.seq_len),
    }


def following_notes(launch: LaunchSpec) -> tuple[str, ...]:
    """Of each argument that gives way to the plan, what was written and what comes instead, in words."""
    if not launch.command:
        return ()
    return tuple(
        f"launch.command says --{one.argument} {one.written}; it follows the plan's {FOLLOWING_ARGUMENTS[one.argument]}"
        for one in read_command(launch).following
    )


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


def _starts_accelerate(words: list[str]) -> bool:
    by_name = words[0].rpartition("/")[2] == "accelerate" and words[1:2] == ["launch"]
    return by_name or (words[:2] == ["-m", "accelerate.commands.launch"] and bool(words[2:]))


def _split_accelerate(words: list[str]) -> tuple[list[str], list[str]]:
    """The options of `accelerate launch`, and the script with what follows it (`-m module` for a module).

    Which options take values only accelerate knows, so the script is the first word that ends in .py or follows -m.
    """
    for index, word in enumerate(words):
        if word in ("-m", "--module") and words[index + 1 :]:
            options, program = words[:index], ["-m", *words[index + 1 :]]
            break
        if word.endswith(".py"):
            options, program = words[:index], words[index:]
            break
    else:
        why = "after `accelerate launch` and its options comes a script that ends in .py, or -m and a module"
        raise _command_error("launch.command names no Python script or module", why)
    for option in options:
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        if option.startswith("-") and name in ACCELERATE_OWNED:
            raise InputError(
                f"launch.command gives `accelerate launch` the option {option}",
                why="the plan decides it: processes by the cluster, batches, ZeRO and precision by the config",
                fix=f"remove {option} (and its value) from launch.command",
            )
    return options, program


def _follow_plan(words: list[str]) -> tuple[list[str], tuple[Following, ...]]:
    """The words with the Trainer's own batch arguments turned into slots, and which were."""
    followed: list[str] = []
    found: list[Following] = []
    index = 0
    while index < len(words):
        word = words[index]
        option, joined, value = word.partition("=")
        argument = option[2:].replace("-", "_") if option.startswith("--") else ""
        index += 1
        if argument not in FOLLOWING_ARGUMENTS:
            followed.append(word)
            continue
        if not joined and _takes_next(argument, words[index : index + 1]):
            value, index = words[index], index + 1
        slot = FOLLOWING_ARGUMENTS[argument]
        followed.append(f"{option}={{{slot}}}")
        if f"{{{slot}}}" not in value:
            found.append(Following(argument=argument, written=value or "True"))
    return followed, tuple(found)


def _takes_next(argument: str, following: list[str]) -> bool:
    if not following:
        return False
    if argument in _BOOLEAN_ARGUMENTS:
        return following[0].lower() in _BOOLEAN_WORDS or following[0].startswith("{")
    return True
