"""How a job file says cluster sizes: one number of nodes, a list of them, or `{from: 256, to: 2048, step: 8}`.

Owns the form only. Which sizes are searched is `planner.space`'s business.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from planner.catalog.documents import describe
from planner.catalog.strict import complain

MAX_NODES = 100_000
MAX_SIZES = 4_096  # different sizes in one job: each is a whole search space of its own
_RANGE_KEYS = ("from", "to", "step")
_FORMS = "write 8, [8, 16, 32], or {from: 256, to: 2048, step: 8}"


def parse_nodes(value: Any) -> tuple[int, ...]:
    """The cluster sizes of a `nodes:` value in ascending order, each once; a validator for pydantic."""
    if isinstance(value, dict):
        return _range(value)
    given = value if isinstance(value, list) else [value]
    if not 1 <= len(given) <= MAX_SIZES:
        raise complain(f"must list from 1 to {MAX_SIZES} sizes, found {len(given)}", fix=_FORMS)
    sizes = tuple(sorted(_size(item) for item in given))
    repeated = next((one for one, other in pairwise(sizes) if one == other), None)
    if repeated is not None:
        raise complain(f"lists {repeated} twice", fix="list each size once")
    return sizes


def _range(value: dict[Any, Any]) -> tuple[int, ...]:
    """from, from + step, …, up to `to` included when the steps reach it."""
    unknown = [key for key in value if key not in _RANGE_KEYS]
    missing = [key for key in ("from", "to") if key not in value]
    if unknown or missing:
        problem = f"has an unknown key {unknown[0]!r}" if unknown else f"has no {missing[0]!r}"
        raise complain(f"{problem} in its range of sizes", fix=_FORMS)
    first, last, step = _size(value["from"]), _size(value["to"]), _size(value.get("step", 1))
    if last < first:
        raise complain(f"goes from {first} down to {last}", fix="write the smaller size as from")
    sizes = range(first, last + 1, step)
    if len(sizes) > MAX_SIZES:
        raise complain(f"names {len(sizes)} sizes, at most {MAX_SIZES}", fix="write a larger step")
    return tuple(sizes)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise complain(f"must be a whole number of nodes, found {describe(value)}", fix=_FORMS)
    if not 1 <= value <= MAX_NODES:
        raise complain(f"must be from 1 to {MAX_NODES} nodes, found {value}", fix="correct the value")
    return value


def plain_nodes(sizes: tuple[int, ...]) -> list[int] | dict[str, int]:
    """The shortest form of several sizes, which `parse_nodes` reads back."""
    step = sizes[1] - sizes[0] if len(sizes) > 1 else 1
    if len(sizes) > 2 and sizes == tuple(range(sizes[0], sizes[-1] + 1, step)):
        return {"from": sizes[0], "to": sizes[-1], "step": step}
    return list(sizes)
