"""What a job file may say about starting the training: launcher, the user's own command, environment, scheduler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from planner.catalog.documents import describe, shorten
from planner.catalog.strict import StrictModel, complain, word_parser
from planner.errors import did_you_mean
from planner.jobfile.quantities import PathText
from planner.spec import Launcher, ScriptKind

# What `planner.emit` fills in; a test holds the two lists together.
COMMAND_SLOTS = (
    "deepspeed_config",
    "task",
    "global_batch_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "world_size",
    "zero_stage",
    "precision",
    "bf16",
    "fp16",
    "activation_checkpointing",
    "gradient_checkpointing",
    "attention",
    "torch_compile",
    "cross_entropy",
    "seq_len",
)
KUBERNETES_KEYS = (
    "image",
    "namespace",
    "name",
    "kind",
    "volumes",
    "shared_memory",
    "rdma",
    "restarts",
    "node_selector",
    "service_account",
)
SLURM_OWNED = ("nodes", "ntasks", "ntasks-per-node")  # the plan's layout decides these
# Refused here and not only when the script is written, which is after the trials.
SHELL_OPERATORS = ("|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>")
_STARTERS = ("bash", "deepspeed", "mpiexec", "mpirun", "sbatch", "sh", "srun", "torchrun")
_SLOT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")  # doubled braces are braces
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_OPTION = re.compile(r"[a-z][a-z0-9_-]{0,99}")


def parse_command(value: Any) -> str:
    """The user's own command: words that can be split, `{deepspeed_config}` among its slots."""
    if not isinstance(value, str) or not value.strip() or len(value) > 10_000 or "\0" in value:
        raise complain(f"must be a command, found {describe(value)}", fix="write it as one quoted line")
    _refuse_more_than_a_program(value)
    slots = [slot for slot in _SLOT.findall(value) if slot]
    unknown = [slot for slot in slots if slot not in COMMAND_SLOTS]
    if unknown:
        hint = did_you_mean(unknown[0], COMMAND_SLOTS)
        raise complain(f"has the unknown slot {{{shorten(unknown[0])}}}", fix=f"{hint}; {{{{ and }}}} are plain braces")
    if "deepspeed_config" not in slots:
        raise complain(
            "does not pass {deepspeed_config}, so the script would never see the plan",
            fix='add it, as in "train.py --deepspeed {deepspeed_config}"',
        )
    return value


def _refuse_more_than_a_program(command: str) -> None:
    """The start script runs one Python program a rank: no line of shell, and no launcher inside the launcher."""
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise complain(f"cannot be split into words: {str(problem).lower()}", fix="close the quotes") from None
    operators = [word for word in words if word in SHELL_OPERATORS]
    if operators:
        raise complain(
            f"holds the shell operator {operators[0]!r}", fix="give one Python program with its arguments, as words"
        )
    if words[:1] == ["accelerate"] and words[1:2] != ["launch"]:
        raise complain("starts accelerate, but not its launch", fix="write accelerate launch … train.py …")
    if words and words[0].rpartition("/")[2] in _STARTERS:
        raise complain(
            f"starts with {shorten(words[0])}, but the plan's start script is the launcher",
            fix="give the Python script and its arguments; launch.launcher says what starts it",
        )


def parse_pairs(
    key_form: re.Pattern[str],
    what: str,
    *,
    made_of: str,
    known: tuple[str, ...] = (),
    owned: tuple[str, ...] = (),
) -> Callable[[Any], tuple[tuple[str, str], ...]]:
    """A validator of name-to-text mappings, kept as pairs in alphabetical order. Whole numbers are taken as texts.

    A key is `what`, `made_of` what its form takes. `known`: the only keys there are; () for any of that form. `owned`:
    keys that the plan sets, with dashes; they may be written with underscores.
    """

    def parse(value: Any) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict) and value is not None:
            raise complain(f"must be a mapping, found {describe(value)}", fix="write one `name: value` a line")
        pairs = value or {}
        if len(pairs) > 200:
            raise complain(f"has {len(pairs)} entries", fix="list at most 200")
        if len({key.replace("_", "-") for key in pairs}) < len(pairs):
            raise complain("has one key in two spellings, with _ and with -", fix="keep one of the two")
        return tuple(sorted((_key(key), _text(key, item)) for key, item in pairs.items()))

    def _key(key: str) -> str:
        if known and key not in known:
            raise complain(f"has the unknown key {shorten(key)!r}", fix=did_you_mean(key, known))
        if key.replace("_", "-") in owned:
            raise complain(f"has {key}, which the plan's layout decides", fix="remove it; cluster: says how many nodes")
        if not key_form.fullmatch(key):
            raise complain(f"has the key {shorten(key)!r}, which is no {what}", fix=f"use {made_of}")
        return key

    def _text(key: str, item: Any) -> str:
        # Keep: no floats. 1.10 would arrive as 1.1, and 1e3 as 1000.0.
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise complain(f"has for {key} {describe(item)}, not a text", fix=f"put the value of {key} in quotes")
        text = str(item)
        if "\0" in text or len(text) > 10_000:
            raise complain(f"has for {key} a text that no process can be given", fix="shorten it, drop zero bytes")
        return text

    return parse


_parse_environment = parse_pairs(
    _VARIABLE, "name of an environment variable", made_of="letters, digits and _, no digit first"
)
_parse_sbatch = parse_pairs(
    _OPTION,
    "long option of sbatch",
    made_of="small letters, digits and -, without the leading dashes",
    owned=SLURM_OWNED,
)
_parse_kubernetes = parse_pairs(_OPTION, "option name", made_of="the names as they are", known=KUBERNETES_KEYS)

EnvironmentMap = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_parse_environment)]
OptionMap = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_parse_sbatch)]
KubernetesMap = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_parse_kubernetes)]


def parse_folders(value: Any) -> tuple[str, ...]:
    """A folder or a list of them."""
    folders = value if isinstance(value, list) else [value]
    if len(folders) > 100:
        raise complain(f"lists {len(folders)} folders", fix="list at most 100")
    for folder in folders:
        if not isinstance(folder, str) or not 0 < len(folder) <= 4096 or "\0" in folder:
            raise complain(f"must be a folder or a list of them, found {describe(folder)}", fix="write [src, ../lib]")
    return tuple(folders)


def parse_host_lines(value: Any) -> tuple[str, ...]:
    """A list of `host slots=N`; empty: the nodes have no names."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return tuple(value)
    raise complain(
        f"must be a list of hosts, found {describe(value)}", fix="name a hostfile: cluster: {hostfile: FILE}"
    )


def parse_own_config(value: Any) -> Any:
    """A path, or the config itself."""
    if (isinstance(value, str) and 0 < len(value) <= 4096 and "\0" not in value) or isinstance(value, dict):
        return value
    raise complain(
        f"must be the path of a DeepSpeed config, or the config itself, found {describe(value)}",
        fix="write deepspeed_config: path/to/ds_config.json",
    )


ScriptKindWord = Annotated[ScriptKind, BeforeValidator(word_parser(ScriptKind))]
LauncherWord = Annotated[Launcher, BeforeValidator(word_parser(Launcher))]


class LaunchSection(StrictModel):
    launcher: LauncherWord = Field(
        default=Launcher.TORCHRUN, description="torchrun, deepspeed, slurm, srun or kubernetes"
    )
    command: Annotated[str, BeforeValidator(parse_command)] | None = Field(
        default=None, description="the user's own script with {deepspeed_config}; left out: the reference trainer"
    )
    consumer: ScriptKindWord | None = Field(
        default=None,
        description="whose loop the script runs: deepspeed, huggingface or accelerate; left out: looked up",
    )
    folder: PathText | None = Field(
        default=None, description="where the command starts, relative to the job file; left out: the job file's folder"
    )
    deepspeed_config: Annotated[Any, BeforeValidator(parse_own_config)] = Field(
        default=None, description="a DeepSpeed config of one's own, over which the plan lays its keys"
    )
    hosts: Annotated[tuple[str, ...] | None, BeforeValidator(parse_host_lines)] = Field(
        default=None, description="the nodes by name, as the planner writes them from cluster.hostfile"
    )
    master_port: int = Field(default=29500, ge=1, le=65_535, description="the port where ranks meet")
    python_path: Annotated[tuple[str, ...], BeforeValidator(parse_folders)] | None = Field(
        default=None, description="folders of the job's own modules; for a factory by default the job file's own"
    )
    environment: EnvironmentMap = Field(default=(), description="environment variables of the training")
    slurm: OptionMap = Field(default=(), description="sbatch's long options: account, partition, time")
    kubernetes: KubernetesMap = Field(default=(), description="image, namespace, name")
