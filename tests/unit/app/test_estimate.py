"""One configuration or a stream of them: what a row means, and what is said of one that means nothing."""

from __future__ import annotations

import json
from itertools import count, islice
from typing import Any

import pytest

from planner.app.estimate import ROWS_AT_ONCE, estimate_one, estimate_rows
from planner.errors import InputError

ROW: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "seq_len": 4096, "zero_stage": 3}
INLINE = {"hidden_size": 512, "num_layers": 4, "num_heads": 8}


def _answers(*lines: Any) -> list[dict[str, Any]]:
    return list(estimate_rows(line if isinstance(line, str) else json.dumps(line) for line in lines))


def test_estimate_one_has_every_key_of_the_interface_and_parts_that_sum() -> None:
    result = estimate_one(ROW)
    assert list(result) == [
        *("feasible", "fits", "reasons", "memory", "step_time_s", "time_breakdown"),
        *("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "kind"),
    ]
    memory = result["memory"]
    assert sum(memory["breakdown"].values()) == memory["device_used_bytes"]
    assert 0 < memory["low_bytes"] <= memory["high_bytes"] <= memory["usable_bytes"]
    assert sum(result["time_breakdown"].values()) == pytest.approx(result["step_time_s"])
    assert result["tokens_per_s"] == pytest.approx(8 * result["tokens_per_s_per_gpu"])
    assert (result["feasible"], result["fits"], result["kind"]) == (True, True, "computed")
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_estimate_one_that_does_not_fit_says_why() -> None:
    result = estimate_one({**ROW, "zero_stage": 0, "micro_batch_size": 8})
    assert (result["feasible"], result["fits"]) == (True, False)
    assert str(result["memory"]["usable_bytes"]) in result["reasons"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zero_stage": 2, "pipeline_parallel_size": 2}, "ZeRO 0 or 1"),
        ({"tensor_parallel_size": 3}, "cannot be divided by"),
        ({"global_batch_size": 12, "micro_batch_size": 2}, "is not a multiple of"),
        ({"tensor_parallel_size": 8, "model": INLINE | {"num_heads": 4}}, "heads"),
    ],
)
def test_estimate_of_what_a_rule_forbids_has_reasons_and_no_numbers(changes: dict[str, Any], words: str) -> None:
    result = estimate_one({**ROW, **changes})
    assert (result["feasible"], result["fits"]) == (False, False)
    assert words in " ".join(result["reasons"])
    assert "memory" not in result and "step_time_s" not in result


def test_estimate_rows_answer_in_order_with_malformed_lines_between() -> None:
    answers = _answers(
        ROW,
        "{not json",
        {**ROW, "micro_batch_size": 2},
        "[]",
        {**ROW, "micro_batchsize": 2},
        {"model": INLINE, "gpu": "v100-sxm-16gb", "seq_len": 512, "precision": "fp16"},
        {**ROW, "model": "lama-3.1-8b"},
        {**ROW, "seq_len": "4096"},
        "x" * (1 << 20) + "x",
        {**ROW, "zero_stage": 2, "pipeline_parallel_size": 2},
        ROW,
    )
    kinds = ["error" if "error" in one else "priced" if one["feasible"] else "refused" for one in answers]
    assert kinds == [
        *("priced", "error", "priced", "error", "error", "priced", "error", "error", "error", "refused", "priced")
    ]
    assert answers[0] == answers[-1] == estimate_one(ROW)
    assert answers[2]["memory"]["allocated_bytes"] > answers[0]["memory"]["allocated_bytes"]
    assert "did you mean 'micro_batch_size'" in answers[4]["fix"]
    assert all(set(one) == {"error", "why", "fix", "line"} for one in answers if "error" in one)
    assert [one["line"] for one in answers if "error" in one] == [2, 4, 5, 7, 8, 9]
    assert all(one["error"].startswith(f"line {one['line']}") for one in answers if "error" in one)


def test_estimate_rows_skip_blank_lines_and_count_them() -> None:
    answers = _answers(ROW, "", "  \n", ROW, "\n", "{", "")
    assert answers[0] == answers[1] == estimate_one(ROW)
    assert [one.get("line") for one in answers] == [None, None, 6]


def test_estimate_one_speaks_of_the_configuration_not_of_a_row() -> None:
    with pytest.raises(InputError) as caught:
        estimate_one({**ROW, "micro_batchsize": 2})
    said = " ".join((caught.value.error, caught.value.why, caught.value.fix))
    assert "row" not in said and "configuration" in said


def test_estimate_rows_answer_as_they_are_read() -> None:
    endless = (json.dumps({**ROW, "micro_batch_size": 1 + number % 3}) for number in count())
    answers = list(islice(estimate_rows(endless), ROWS_AT_ONCE + 2))
    assert answers[0] == answers[3] != answers[1]
    assert answers[ROWS_AT_ONCE] == answers[ROWS_AT_ONCE % 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gradient_accumulation_steps": 2, "global_batch_size": 16}, "both given"),
        ({"world_size": 16, "nodes": 1, "gpus_per_node": 8}, "is not nodes x gpus_per_node"),
        ({"activation_checkpointing": "layers:0"}, "activation_checkpointing"),
        ({"precision": "bf32"}, "precision"),
        ({"gpu": "h300"}, "there is no GPU"),
    ],
)
def test_estimate_of_a_contradictory_row_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        estimate_one({**ROW, **changes})
    assert words in caught.value.error


def test_estimate_of_the_same_world_said_in_two_ways_is_the_same() -> None:
    assert estimate_one({**ROW, "nodes": 2}) == estimate_one({**ROW, "world_size": 16})
    one_gpu = estimate_one({**ROW, "world_size": 1})
    assert one_gpu["tokens_per_s"] == one_gpu["tokens_per_s_per_gpu"]
