"""The tables and findings of `planner.rules` against the installed DeepSpeed's own parser (one child process)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.rules import NEWEST_VERSION, ConfigContext, check_config, known_keys, parse_version

VALUES: tuple[Any, ...] = (True, "true", "maybe", 1, 3, 3.5, 5e8, "5", "5e8", None, [], {}, "auto", -1, 0)
ABOUT_VALUES = {"value-wrong-kind", "key-unknown-refused", "block-not-mapping", "key-removed", "key-too-new"}
# The parser takes these; the engine does not.
REFUSED_LATER = {
    ("tensor_parallel", "autotp_size"),
    ("tensor_parallel.tp", "tp_size"),
    ("tensor_parallel.tp", "tp_grain_size"),
}
# Free-form lists, and numbers in quotes that only this block refuses: not described in the tables.
NOT_DESCRIBED = {
    ("zero_optimization.leaf_module", "classes"),
    ("zero_optimization.leaf_module", "names"),
    ("zero_optimization.leaf_module", "name_suffixes"),
    ("zero_optimization.zenflow", "select_interval"),
    ("zero_optimization.zenflow", "update_interval"),
}


def _one_key(version: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every key of every strict block (and one that is none), with every value."""
    cases = []
    for path, block in known_keys(version).items():
        if not block.strict:
            continue
        for name in (*block.keys, "no_such_key"):
            for value in VALUES:
                config: dict[str, Any] = {"train_batch_size": 8}
                current = config
                for part in path.split("."):
                    current = current.setdefault(part, {})
                current[name] = value
                cases.append((path, name, config))
    return cases


@pytest.fixture(scope="module")
def deepspeed() -> dict[str, Any]:
    """What DeepSpeed says of all cases, asked once."""
    installed = _installed_version()
    cases = _one_key(installed)
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("deepspeed_parse_child.py"))],
        input=json.dumps([config for _path, _name, config in cases]),
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return {**answer, "cases": cases, "installed": installed}


def _installed_version() -> str:
    from importlib.metadata import version

    return version("deepspeed")


def test_tables_hold_exactly_the_fields_of_deepspeeds_models(deepspeed: dict[str, Any]) -> None:
    blocks = known_keys(deepspeed["installed"])
    assert {path: sorted(blocks[path].keys) for path in deepspeed["fields"]} == deepspeed["fields"]


def test_installed_deepspeed_is_one_that_the_tables_know() -> None:
    assert parse_version(_installed_version()) <= NEWEST_VERSION


def test_a_value_is_flagged_exactly_when_deepspeed_refuses_it(deepspeed: dict[str, Any]) -> None:
    wrong = []
    for (path, name, config), refusal in zip(deepspeed["cases"], deepspeed["errors"], strict=True):
        if (path, name) in NOT_DESCRIBED:
            continue
        context = ConfigContext(world_size=1, deepspeed_version=deepspeed["installed"])
        errors = {item.code for item in check_config(config, context) if item.severity == "error"}
        missed = bool(refusal) and not errors
        false_alarm = not refusal and errors & ABOUT_VALUES and (path, name) not in REFUSED_LATER
        if missed or false_alarm:
            wrong.append((path, name, config, refusal, errors))
    assert wrong == []
