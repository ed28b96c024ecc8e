"""Which keys DeepSpeed takes, block by block and per version, and how it treats one that it does not know.

The tables for 0.19.6, 0.19.7 and 0.19.8 were read out of the released sources (pydantic fields; constants and
`get_scalar_param` calls elsewhere). Owns names, kinds, bounds and versions; what values mean together is the business
of the rules beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from planner.errors import NotExpressible
from planner.rules._key_tables import BLOCKS
from planner.rules.keys import Block, Key
from planner.spec._record import record

Version: TypeAlias = tuple[int, int, int]

OLDEST_VERSION: Version = (0, 19, 6)
NEWEST_VERSION: Version = (0, 19, 8)


def parse_version(text: str) -> Version:
    """`0.19.8`, `0.19.8+cu13`, `0.19.8.dev1` to numbers; "" (nothing is installed) is read as the newest known.

    Raises NotExpressible for what is no version, and for a version older than the tables.
    """
    if not text:
        return NEWEST_VERSION
    parts = text.split("+")[0].split(".")
    numbers = [int(part) for part in parts[:3] if part.isdecimal() and len(part) < 6]
    if len(numbers) != 3:
        raise NotExpressible(
            f"{text!r} is not a version of DeepSpeed",
            why="keys are known per version, written as three numbers",
            fix="use a version such as 0.19.8",
        )
    version = (numbers[0], numbers[1], numbers[2])
    if version < OLDEST_VERSION:
        raise NotExpressible(
            f"DeepSpeed {text} is older than what this planner knows",
            why=f"its tables of keys begin at {'.'.join(map(str, OLDEST_VERSION))}",
            fix="install a newer DeepSpeed: pip install 'deepspeed>=0.19.6,<0.20'",
        )
    return version


@record
class KnownBlock:
    """One block of the configuration in one version. `keys` by every spelling that is accepted, aliases included.

    `strict`: DeepSpeed raises on an unknown key here; otherwise it ignores it without a word. `open`: any key goes.
    """

    path: str
    strict: bool
    open: bool
    keys: Mapping[str, Key]


@cache
def known_keys(version: str) -> Mapping[str, KnownBlock]:
    """Every block of DeepSpeed's configuration in a version, by dotted path; "" is the top level.

    A version newer than the tables is read as the newest known one. Raises NotExpressible for older ones.
    """
    number = parse_version(version)
    return MappingProxyType({block.path: _known_block(block, number) for block in BLOCKS})


def _known_block(block: Block, version: Version) -> KnownBlock:
    keys: dict[str, Key] = {}
    for key in block.keys:
        if key.since <= version and (key.removed is None or version < key.removed):
            keys[key.name] = key
            keys.update(dict.fromkeys(key.aliases, key))
    return KnownBlock(path=block.path, strict=block.strict, open=block.open, keys=MappingProxyType(keys))


def key_history(path: str) -> Key | None:
    """The key at a dotted path in any known version; None when no version has it."""
    parent, _, name = path.rpartition(".")
    for block in BLOCKS:
        if block.path == parent:
            for key in block.keys:
                if name == key.name or name in key.aliases:
                    return key
    return None


@record
class DriftingDefault:
    """A key whose default changed between versions, so that leaving it out means different things.

    `write`: the value to write so that every version does the same. `block`: the block whose presence makes the key
    matter ("" always). `needs`: a switch that must be on for the key to act ("" none).
    """

    path: str
    write: bool | int | float | str
    was: str
    block: str = ""
    needs: str = ""


DRIFTING_DEFAULTS: tuple[DriftingDefault, ...] = (
    DriftingDefault(path="gradient_clipping", write=1.0, was="0 (no clipping) before June 2026, 1.0 since"),
    DriftingDefault(
        path="zero_optimization.offload_optimizer.pin_memory",
        write=True,
        was="false before August 2026, true since",
        block="zero_optimization.offload_optimizer",
    ),
    DriftingDefault(
        path="zero_optimization.offload_param.pin_memory",
        write=True,
        was="false before August 2026, true since",
        block="zero_optimization.offload_param",
    ),
    DriftingDefault(
        path="zero_optimization.overlap_comm",
        write=False,
        was="decided by the ZeRO stage: true at stage 3 only",
        block="zero_optimization",
    ),
    DriftingDefault(
        path="bf16.check_grad_overflow",
        write=True,
        was="false before 2026, true since",
        block="bf16",
        needs="bf16.enabled",
    ),
)
