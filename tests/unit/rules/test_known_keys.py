from __future__ import annotations

import pytest

from planner.errors import NotExpressible
from planner.rules import DRIFTING_DEFAULTS, key_history, known_keys, parse_version


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
