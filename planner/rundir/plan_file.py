"""`plan.yaml`: the plan record as YAML, read back as strictly as it was written."""

from __future__ import annotations

from typing import Any

import yaml

from planner.errors import InputError
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.plan import PLAN_FORMAT, Plan

_MAX_BYTES = 4 * 1024 * 1024  # a plan is some tens of KiB; more is not one of ours
_HEADER = "# Written by meshplan: the choice, what it promises, and where each number comes from.\n"


class _PlainDumper(yaml.SafeDumper):
    """Never writes anchors: a plan is a tree, and `_TreeLoader` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _TreeLoader(yaml.SafeLoader):
    """Safe, and without aliases: a few bytes of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not used in a plan")
        return super().compose_node(parent, index)


def render_plan(plan: Plan) -> str:
    """The text of `plan.yaml`; `parse_plan` of it is the plan again."""
    body: str = yaml.dump(to_plain(plan), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=120)
    return _HEADER + body


def parse_plan(text: str, *, name: str) -> Plan:
    """Read a plan. Raises InputError, calling the file `name`, for anything but a plan of this format or an older."""
    if len(text) > _MAX_BYTES:
        raise InputError(f"{name} is too large for a plan", why=f"it has {len(text)} characters", fix=_fix(name))
    try:
        value = yaml.load(text, Loader=_TreeLoader)  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        raise InputError(f"{name} cannot be read", why=_one_line(problem), fix=_fix(name)) from problem
    if isinstance(value, dict):
        refuse_newer_format(value.get("format"), name=name)
    try:
        return from_plain(Plan, value)
    except DecodeError as problem:
        raise InputError(f"{name} is not a plan", why=str(problem), fix=_fix(name)) from problem


def refuse_newer_format(found: Any, *, name: str) -> None:
    """Raises InputError when `found` is the number of a format that this planner does not know yet."""
    if isinstance(found, int) and not isinstance(found, bool) and found > PLAN_FORMAT:
        raise InputError(
            f"{name} was written by a newer planner",
            why=f"it has format {found}; this planner knows formats up to {PLAN_FORMAT}",
            fix="install a newer meshplan, or make a new plan folder with this one (--out)",
        )


def _fix(name: str) -> str:
    return f"restore {name} from a copy, or plan again into a new folder (--out)"


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:500] or type(problem).__name__
