"""plan.yaml round-trips exactly and refuses what is not a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.rundir import RunDir, names
from planner.rundir.plan_file import parse_plan, render_plan
from planner.spec import Plan
from planner.spec.plan import PLAN_FORMAT


def test_write_then_read_is_the_same_plan(tmp_path: Path, plan: Plan) -> None:
    run_dir = RunDir.create(tmp_path / "p", plan.job_hash)
    run_dir.write_plan(plan)
    assert run_dir.read_plan() == plan


def test_render_is_plain_yaml_without_tags_or_anchors(plan: Plan) -> None:
    text = render_plan(plan)
    assert "!!" not in text and "&id" not in text and "format: 1" in text


def test_newer_format_is_refused_even_with_unknown_keys(plan: Plan) -> None:
    text = render_plan(replace(plan, format=PLAN_FORMAT + 3)) + "brand_new_key: 1\n"
    with pytest.raises(InputError, match="newer planner"):
        parse_plan(text, name=names.PLAN)


_BOMB = "a: &a [x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "- 1\n- 2",
        "{",
        "a: !!python/object/apply:os.system ['true']",
        _BOMB,
        "[" * 5000,
        "format: 1\n",
        "x: 2001-99-99",
        "\x00",
    ],
    ids=["empty", "text", "list", "brace", "tag", "bomb", "deep", "bare", "date", "nul"],
)
def test_parse_anything_else_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_plan(text, name=names.PLAN)
    assert refusal.value.fix and len(str(refusal.value)) < 2000


def test_unknown_key_is_named(plan: Plan) -> None:
    with pytest.raises(InputError) as refusal:
        parse_plan(render_plan(plan) + "tokens_per_sec: 3\n", name=names.PLAN)
    assert "tokens_per_sec" in refusal.value.why
