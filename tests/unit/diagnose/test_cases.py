"""Every real case, with the verdict that its source established: by the log alone, with the note, pasted together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.diagnose.reading import load_cases, log_of, verdict_of

CASES = load_cases("oom_cases.yaml")
FURTHER = load_cases("further.yaml")

# Cases that the log alone cannot answer, with the reason. With the note that belongs to the case they are answered.
NEEDS_THE_NOTE = {
    "OOM-36": "the message shows a full 8 GB card; that it fits from scratch and fails on resume is "
    "only said beside it",
}


def _by_id(case: dict[str, Any]) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", [case for case in CASES if case["id"] not in NEEDS_THE_NOTE], ids=_by_id)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_case_is_answered_from_its_log_alone(case: dict[str, Any], as_json: bool) -> None:
    assert verdict_of(log_of(case, as_json=as_json)).cause.value == case["diagnosis"]


@pytest.mark.parametrize("case", CASES, ids=_by_id)
def test_case_is_answered_with_its_situation_as_a_note(case: dict[str, Any]) -> None:
    verdict = verdict_of(log_of(case), note=case["situation"])
    assert verdict.cause.value == case["diagnosis"]
    assert verdict.evidence
    assert 0 < verdict.confidence <= 1


@pytest.mark.parametrize("case", CASES, ids=_by_id)
def test_case_is_answered_with_its_situation_pasted_above_the_log(case: dict[str, Any]) -> None:
    assert verdict_of(f"{case['situation']}\n\n{log_of(case)}").cause.value == case["diagnosis"]


def test_at_most_one_case_in_twenty_needs_more_than_its_log() -> None:
    known = {case["id"] for case in CASES}
    assert set(NEEDS_THE_NOTE) <= known
    assert len(NEEDS_THE_NOTE) * 20 <= len(CASES)


@pytest.mark.parametrize("case", FURTHER, ids=_by_id)
def test_further_failure_of_the_same_kinds_gets_the_verdict_its_report_supports(case: dict[str, Any]) -> None:
    verdict = verdict_of(case["log"], note=case.get("note", ""))
    assert verdict.cause.value in (case["cause"], *case.get("accept", ())), verdict.evidence


@pytest.mark.parametrize(
    ("case_id", "words"),
    [
        ("OOM-01", ("4.85 GiB",)),
        ("OOM-05", ("24.86 GiB", "could not be read")),
        ("OOM-07", ("203.49 GiB", "14.93 GiB")),
        ("OOM-08", ("96.00 GiB", "15.24 GiB")),
        ("OOM-18", ("25.18 GiB", "nvidia-smi")),
        ("OOM-19", ("5.08 GiB", "1.86 GiB")),
        ("OOM-27", ("125.80 GiB", "6,049,711,186", "12 to 16 bytes")),
        ("OOM-30", ("928.44 GiB", "9.65 GiB", "times the others")),
        ("OOM-37", ("GPU 0", "2.12 GiB")),
        ("OOM-44", ("1.83 GiB", "2.91 GiB", "1.96 GiB")),
        ("OOM-46", ("9.91 GiB",)),
    ],
)
def test_evidence_names_the_numbers_that_decide(case_id: str, words: tuple[str, ...]) -> None:
    case = next(case for case in CASES if case["id"] == case_id)
    evidence = " ".join(verdict_of(log_of(case)).evidence)
    assert all(word in evidence for word in words), evidence
