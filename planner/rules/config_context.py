"""What a DeepSpeed configuration is checked in, how it is read, and what a finding says.

Owns safe reading of a configuration that may hold anything JSON can hold. Leaves files, comments, line numbers and
`auto` files of other programs to whoever reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from planner.spec import DeviceKind
from planner.spec._record import record

AUTO: Final = "auto"

_BEYOND_USE = 10**15  # no size or count of a training run; NaN fails the comparison too


class Severity(StrEnum):
    """ERROR: DeepSpeed will refuse or fail. WARNING: it silently does something else than written. INFO: the rest.

    NOTE: nothing is wrong with what the file says; it leaves something to others, or to a default, worth a word.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NOTE = "note"


class Consumer(StrEnum):
    """Who reads the file: DeepSpeed itself, or Hugging Face's Trainer or accelerate, which resolve `auto` first."""

    DEEPSPEED = "deepspeed"
    HUGGINGFACE = "huggingface"


@record
class Finding:
    """One thing wrong (or worth knowing) in a configuration. `key` is the dotted path; `code` is stable.

    `patch`: the mend as a merge patch (RFC 7396: null removes), None when it needs a decision. `line`: of the file, as
    far as the rule knows it (0: it does not, the key's own).
    """

    code: str
    severity: Severity
    key: str
    message: str
    why: str
    fix: str
    patch: Mapping[str, Any] | None = None
    line: int = 0


@record
class Breach:
    """Where a configuration breaks a rule; the rule adds its name, its severity and its reason to make a Finding.

    `severity` None: the rule's own.
    """

    key: str
    message: str
    fix: str
    severity: Severity | None = None
    why: str = ""
    patch: Mapping[str, Any] | None = None
    line: int = 0


class SyntaxKind(StrEnum):
    """What the text of a file shows that its parsed content no longer does."""

    DUPLICATE_KEY = "duplicate key"
    MISSING_COMMA = "missing comma"
    COMMENT = "comment"
    TRAILING_COMMA = "trailing comma"
    UNQUOTED = "unquoted string"
    OTHER = "not strict JSON"
    BYTE_ORDER_MARK = "byte order mark"
    NOT_A_NUMBER = "NaN or Infinity"
    UNREADABLE = "unreadable"


@record
class SyntaxFact:
    """One such thing: `key` is the dotted path it concerns ("" none), `detail` goes into the message."""

    kind: SyntaxKind
    line: int
    column: int
    key: str = ""
    detail: str = ""


@record
class ModelFacts:
    """What of a model's own config.json bears on a DeepSpeed configuration; 0 where it does not say.

    `inner_hidden_size`: that of `text_config`, where composite models keep it.
    """

    hidden_size: int = 0
    inner_hidden_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    num_experts: int = 0


@record
class ConfigContext:
    """What is known beside the file.

    `world_size` 0: unknown. `tensor_parallel_size` is that of an mpu or topology (the `tensor_parallel` block is read
    from the file itself). `consumer_stated`, `version_stated`: told, not guessed. `client_optimizer`: whether the
    script passes an optimizer of its own, None: unknown; `client_optimizer_name`: its class. `native_moe`: whether the
    model has DeepSpeed's own MoE layers. `gpu_memory_bytes` 0: unknown. `trainer_args`, `accelerate`: what the
    Trainer's arguments and accelerate's file say; `from_accelerate`: the configuration was made from that file's own
    block, there is no DeepSpeed file.
    """

    world_size: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    sequence_parallel_size: int = 1
    consumer: Consumer = Consumer.DEEPSPEED
    deepspeed_version: str = "0.19.8"
    device: DeviceKind | None = None
    client_optimizer: bool | None = None
    client_optimizer_name: str = ""
    consumer_stated: bool = False
    version_stated: bool = False
    native_moe: bool | None = None
    model: ModelFacts | None = None
    gpu_memory_bytes: int = 0
    gpu_has_bf16: bool | None = None
    trainer_args: Mapping[str, Any] | None = None
    accelerate: Mapping[str, Any] | None = None
    from_accelerate: bool = False


@record
class ConfigView:
    """A configuration with its context; every read survives any JSON value."""

    config: Mapping[str, Any]
    context: ConfigContext
    syntax: tuple[SyntaxFact, ...] = ()

    @property
    def resolves_auto(self) -> bool:
        """Whether somebody replaces `auto` before DeepSpeed reads the file."""
        return self.context.consumer is Consumer.HUGGINGFACE

    def block(self, path: str) -> Mapping[str, Any]:
        """The mapping at a dotted path; empty when there is none or it is no mapping. "" is the whole file."""
        current: Any = self.config
        for part in path.split(".") if path else ():
            current = current.get(part) if isinstance(current, Mapping) else None
        return current if isinstance(current, Mapping) else {}

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path, `default` when it is missing."""
        parent, _, key = path.rpartition(".")
        return self.block(parent).get(key, default)

    def has(self, path: str) -> bool:
        """Whether the key is present at all, whatever its value."""
        parent, _, key = path.rpartition(".")
        return key in self.block(parent)

    def number(self, path: str, default: float = 0.0) -> float:
        """A number at a dotted path; `default` for anything that is not one, or beyond any use."""
        value = self.get(path)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number and abs(value) < _BEYOND_USE else default

    def flag(self, path: str, default: bool = False) -> bool:
        """A switch as DeepSpeed's pydantic blocks read it: booleans, 0 and 1, the words for them; `auto` is dropped."""
        value = self.get(path, default)
        if value == AUTO:
            return default
        if isinstance(value, str):
            return value.lower() in _TRUE_WORDS
        return value is True or (isinstance(value, (int, float)) and value == 1)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage that DeepSpeed will run: 0 when absent or `auto`, 1 for the old boolean form."""
        if self.config.get("zero_optimization") is True:
            return 1
        stage = self.get("zero_optimization.stage", 0)
        if isinstance(stage, str) and stage.isdecimal() and len(stage) == 1:
            return int(stage)
        return int(stage) if isinstance(stage, (int, float)) and stage in (0, 1, 2, 3) else 0

    @property
    def stage_is_open(self) -> bool:
        """Whether another program fills in the stage, so that nothing can be said about it here."""
        return self.resolves_auto and self.get("zero_optimization.stage") == AUTO

    @property
    def offload_optimizer(self) -> str:
        """none, cpu or nvme, the old boolean form included."""
        return self._offload("offload_optimizer", "cpu_offload")

    @property
    def offload_param(self) -> str:
        """none, cpu or nvme, the old boolean form included."""
        return self._offload("offload_param", "cpu_offload_param")

    def _offload(self, block: str, old_switch: str) -> str:
        device = self.get(f"zero_optimization.{block}.device", "none")
        if isinstance(device, str) and device in ("cpu", "nvme"):
            return device
        return "cpu" if self.flag(f"zero_optimization.{old_switch}") else "none"

    @property
    def optimizer_type(self) -> str:
        """The optimizer's name in lower case; "" without one."""
        name = self.get("optimizer.type")
        return name.lower() if isinstance(name, str) else ""


_TRUE_WORDS = frozenset({"true", "1", "yes", "y", "on", "t"})
