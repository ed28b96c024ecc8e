"""Which keys DeepSpeed takes, block by block and per release, and how it treats one that it does not know.

What a key takes is described by hand (`_key_tables`), in which releases it exists was read out of the source of each
(`key_history.json`, generated). What values mean together is the business of the rules beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from planner.errors import NotExpressible
from planner.rules._key_tables import BLOCKS
from planner.rules.key_releases import Span, key_releases
from planner.rules.keys import Block, Key
from planner.spec._record import record

Version: TypeAlias = tuple[int, int, int]

OLDEST_VERSION: Version = (0, 19, 6)  # that plans are made for
NEWEST_VERSION: Version = (0, 19, 8)


def _number(text: str) -> Version:
    major, minor, patch = (int(part) for part in text.split("."))
    return (major, minor, patch)


def known_releases() -> tuple[str, ...]:
    """The releases that configurations are checked for, oldest first."""
    return key_releases().versions


def parse_version(text: str) -> Version:
    """`0.19.8`, `0.19.8+cu13`, `0.19.8.dev1` to numbers; "" (nothing is installed) is read as the newest known.

    Raises NotExpressible for what is no version, and for a version older than those that plans are made for.
    """
    version = _parse(text)
    if version < OLDEST_VERSION:
        raise NotExpressible(
            f"DeepSpeed {text} is older than what this planner knows",
            why=f"plans are made for {dotted(OLDEST_VERSION)} and newer",
            fix="install a newer DeepSpeed: pip install 'deepspeed>=0.19.6,<0.20'",
        )
    return version


def parse_release(text: str) -> Version:
    """As `parse_version`, for any release whose keys are known: older ones can be checked, not planned for.

    Two numbers (`0.15`) stand for the last release of that series.
    """
    if text.count(".") == 1:
        series = [release for release in known_releases() if release.startswith(f"{text}.")]
        text = series[-1] if series else f"{text}.0"
    version = _parse(text)
    oldest = _number(known_releases()[0])
    if version < oldest:
        raise NotExpressible(
            f"DeepSpeed {text} is older than what this planner knows",
            why=f"its tables of keys begin at {dotted(oldest)}",
            fix=f"name a release from {dotted(oldest)} on",
        )
    return version


def _parse(text: str) -> Version:
    if not text:
        return NEWEST_VERSION
    parts = text.split("+")[0].split(".")
    numbers = [int(part) for part in parts[:3] if part.isdecimal() and len(part) < 6]
    if len(numbers) != 3:
        raise NotExpressible(
            f"{text[:60]!r} is not a version of DeepSpeed",
            why="keys are known per version, written as three numbers",
            fix="use a version such as 0.19.8",
        )
    return (numbers[0], numbers[1], numbers[2])


def dotted(version: Version) -> str:
    """`0.19.8` of (0, 19, 8)."""
    return ".".join(str(part) for part in version)


@record
class KnownBlock:
    """One block of the configuration in one version. `keys` by every spelling that is accepted, aliases included.

    `strict`: DeepSpeed raises on an unknown key here; otherwise it ignores it without a word. `open`: any key goes.
    """

    path: str
    strict: bool
    open: bool
    keys: Mapping[str, Key]


def known_keys(version: str) -> Mapping[str, KnownBlock]:
    """Every block of DeepSpeed's configuration in a version that plans are made for, by dotted path; "" is the top.

    A version newer than the tables is read as the newest known one. Raises NotExpressible for older ones.
    """
    return keys_of_release(parse_version(version))


@cache
def keys_of_release(version: Version) -> Mapping[str, KnownBlock]:
    """As `known_keys`, for any release that is known."""
    return MappingProxyType({block.path: _known_block(block, version) for block in BLOCKS})


def _known_block(block: Block, version: Version) -> KnownBlock:
    spans = spans_of(block.path)
    keys: dict[str, Key] = {}
    for key in block.keys:
        for name in (key.name, *key.aliases):
            if _exists(spans.get(name, ()), version):
                keys[name] = key
    strict = _exists(key_releases().strict.get(block.path, ()), version)
    return KnownBlock(path=block.path, strict=strict, open=block.open, keys=MappingProxyType(keys))


def spans_of(path: str) -> Mapping[str, tuple[Span, ...]]:
    """When each key of a block was taken, by name."""
    return key_releases().keys.get(path, {})


def _exists(spans: tuple[Span, ...], version: Version) -> bool:
    return any(
        (not first or _number(first) <= version) and (not gone or version < _number(gone)) for first, gone in spans
    )


@record
class KeyHistory:
    """A key that some release took. `since` None: the oldest known release has it; `removed` None: the newest has."""

    key: Key
    since: Version | None
    removed: Version | None


@cache
def key_history(path: str) -> KeyHistory | None:
    """When releases took the key at a dotted path (its last span, if it went and came back); None: none ever did."""
    parent, _, name = path.rpartition(".")
    for block in BLOCKS:
        if block.path == parent:
            for key in block.keys:
                spans = spans_of(parent).get(name, ())
                if spans and (name == key.name or name in key.aliases):
                    first, gone = spans[-1]
                    return KeyHistory(
                        key=key,
                        since=_number(first) if first else None,
                        removed=_number(gone) if gone else None,
                    )
    return None


def description_of(path: str) -> Key | None:
    """What is known about a key of this path, whether or not a release takes it."""
    parent, _, name = path.rpartition(".")
    return next((key for block in BLOCKS if block.path == parent for key in block.keys if key.name == name), None)


@record
class DriftingDefault:
    """A key whose default changed between versions, so that leaving it out means different things.

    `write`: the value to write so that every version does the same; `was`: what the default is, as a predicate.
    `block`: the block whose presence makes the key matter ("" always). `needs`: a switch that must be on for the key to
    act ("" none). `quiet`: only a broken run shows the difference.
    """

    path: str
    write: bool | int | float | str
    was: str
    block: str = ""
    needs: str = ""
    quiet: bool = False


DRIFTING_DEFAULTS: tuple[DriftingDefault, ...] = (
    DriftingDefault(
        path="gradient_clipping", write=1.0, was="changed: 0 (no clipping) before 0.19.3 (June 2026), 1.0 from it on"
    ),
    DriftingDefault(
        path="zero_optimization.offload_optimizer.pin_memory",
        write=True,
        was="changed: false before 0.19.5 (August 2026), true from it on",
        block="zero_optimization.offload_optimizer",
    ),
    DriftingDefault(
        path="zero_optimization.offload_param.pin_memory",
        write=True,
        was="changed: false before 0.19.5 (August 2026), true from it on",
        block="zero_optimization.offload_param",
    ),
    DriftingDefault(
        path="zero_optimization.overlap_comm",
        write=False,
        was="depends on the ZeRO stage: true at stage 3 only",
        block="zero_optimization",
        quiet=True,
    ),
    DriftingDefault(
        path="bf16.check_grad_overflow",
        write=True,
        was="changed: false before 0.19.3, true from it on",
        block="bf16",
        needs="bf16.enabled",
        quiet=True,
    ),
)
