from __future__ import annotations

import pytest

from planner.errors import NotExpressible
from planner.rules import DRIFTING_DEFAULTS, key_history, known_keys, known_releases, parse_release, parse_version
from planner.rules._key_tables import BLOCKS
from planner.rules.key_releases import key_releases
from planner.rules.known_keys import keys_of_release, spans_of


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.8", (0, 19, 8)),
        ("0.19.6+cu130", (0, 19, 6)),
        ("0.19.9", (0, 19, 9)),
        ("0.20.0", (0, 20, 0)),
        ("", (0, 19, 8)),
    ],
)
def test_parse_version_reads_three_numbers(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["0.19", "newest", "0.x.8", "0.18.3", "0.19.5", "1" * 5000, "²³.19.8"])
def test_parse_version_refuses_what_it_has_no_table_for(text: str) -> None:
    with pytest.raises(NotExpressible):
        parse_version(text)


@pytest.mark.parametrize(
    ("path", "first_without"),
    [
        ("nebula", "0.19.7"),
        ("sparse_attention", "0.19.7"),
        ("amp", "0.19.8"),
        ("elasticity", "0.19.8"),
        ("zero_optimization.mics_shard_size", "0.19.7"),
        ("zero_optimization.zeropp_loco_param", "0.19.8"),
    ],
)
def test_removed_key_is_known_until_its_removal(path: str, first_without: str) -> None:
    parent, _, name = path.rpartition(".")
    assert name in known_keys("0.19.6")[parent].keys
    assert name not in known_keys(first_without)[parent].keys
    assert key_history(path) is not None


@pytest.mark.parametrize(
    ("path", "first_with"),
    [
        ("disable_python_gc", "0.19.8"),
        ("zero_optimization.compute_grad_norm", "0.19.7"),
        ("tensor_parallel.vocab_parallel_lm_head", "0.19.8"),
        ("expert_parallel.comm_backend", "0.19.7"),
    ],
)
def test_new_key_is_known_from_its_version_on(path: str, first_with: str) -> None:
    parent, _, name = path.rpartition(".")
    assert name not in known_keys("0.19.6")[parent].keys
    assert name in known_keys(first_with)[parent].keys


def test_both_spellings_of_an_aliased_key_are_one_key() -> None:
    keys = known_keys("0.19.8")["zero_optimization"].keys
    assert keys["stage3_max_live_parameters"] is keys["max_live_parameters"]
    assert known_keys("0.19.8")[""].keys["bfloat16"].name == "bf16"


def test_a_version_after_the_tables_is_read_as_the_newest() -> None:
    assert known_keys("0.19.12")[""].keys == known_keys("0.19.8")[""].keys


def test_every_drifting_default_is_a_known_key() -> None:
    for default in DRIFTING_DEFAULTS:
        parent, _, name = default.path.rpartition(".")
        assert name in known_keys("0.19.8")[parent].keys


def test_tables_by_hand_describe_exactly_the_keys_that_were_read_out_of_the_releases() -> None:
    never = {"compile.disable"}  # described, because old files hold it; no release ever took it
    for block in BLOCKS:
        if not block.open:
            described = {name for key in block.keys for name in (key.name, *key.aliases)}
            taken = set(spans_of(block.path))
            prefix = f"{block.path}." if block.path else ""
            assert {f"{prefix}{name}" for name in described} - never == {f"{prefix}{name}" for name in taken}
    open_blocks = {block.path for block in BLOCKS if block.open}
    assert set(key_releases().keys) - {block.path for block in BLOCKS} - open_blocks == set()
    assert {block.path for block in BLOCKS if block.strict} == set(key_releases().strict)


@pytest.mark.parametrize(
    ("path", "first", "before"),
    [
        ("zero_optimization.zenflow", "0.17.5", "0.17.4"),
        ("compile.deepcompile", "0.16.6", "0.16.5"),
        ("tensor_parallel", "0.16.4", "0.16.3"),
        ("zero_optimization.zeropp_loco_param", "0.16.2", "0.16.1"),
        ("bf16.check_grad_overflow", "0.17.1", "0.17.0"),
    ],
)
def test_key_of_an_older_release_is_known_from_the_release_that_brought_it(path: str, first: str, before: str) -> None:
    parent, _, name = path.rpartition(".")
    assert name in keys_of_release(parse_release(first))[parent].keys
    assert name not in keys_of_release(parse_release(before))[parent].keys


def test_a_block_that_meant_something_else_is_known_by_its_release() -> None:
    old, new = keys_of_release((0, 14, 0))["compile"].keys, keys_of_release((0, 19, 8))["compile"].keys
    assert "backend" in old
    assert "deepcompile" not in old
    assert "backend" not in new
    assert "compile" not in keys_of_release((0, 15, 0))[""].keys


def test_blocks_became_strict_with_pydantic() -> None:
    assert not keys_of_release((0, 17, 0))["fp16"].strict
    assert keys_of_release((0, 17, 1))["fp16"].strict


def test_releases_are_those_from_0_14_on() -> None:
    assert (known_releases()[0], known_releases()[-1], len(known_releases())) == ("0.14.0", "0.19.8", 47)
    assert parse_release("0.14") == (0, 14, 5)
    with pytest.raises(NotExpressible):
        parse_release("0.13.5")


def test_drifting_defaults_name_the_release_that_changed_them() -> None:
    for default in DRIFTING_DEFAULTS:
        if default.path in key_releases().defaults:
            assert key_releases().defaults[default.path][-1][0] in default.was
    assert set(key_releases().defaults) <= {default.path for default in DRIFTING_DEFAULTS}
