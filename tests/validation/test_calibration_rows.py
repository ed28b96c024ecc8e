"""A few trials correct the model for a machine, and what was not tried is nearer afterwards."""

from __future__ import annotations

import pytest

from tests.validation.calibration_rows import Learning, learning


@pytest.fixture(scope="module")
def learned() -> dict[tuple[str, int], Learning]:
    return {(row.title.split(",")[0], row.trials): row for row in learning()}


@pytest.mark.parametrize("trials", [3, 6])
def test_known_machine_is_not_made_worse(learned: dict[tuple[str, int], Learning], trials: int) -> None:
    row = learned["H200", trials]
    assert row.after <= row.before + 0.002
    assert row.order_after >= row.order_before - 0.01


@pytest.mark.parametrize(("trials", "error"), [(3, 0.06), (6, 0.05)])
def test_machine_unlike_its_data_sheet_is_learned_from_a_few_trials(
    learned: dict[tuple[str, int], Learning], trials: int, error: float
) -> None:
    row = learned["the same", trials]
    assert row.before > 0.5
    assert row.after <= error


def test_more_trials_teach_more(learned: dict[tuple[str, int], Learning]) -> None:
    for title in ("the same", "vTrain"):
        assert learned[title, 6].after <= learned[title, 3].after + 0.001
