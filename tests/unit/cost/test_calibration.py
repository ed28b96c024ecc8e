"""The fit from trials: exact where trials agree, cautious where they are few, unmoved by one odd trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import Calibration, corrected_time_s, estimate_columns, fit_calibration
from planner.spec import Estimate, Measured, Provenance, RankReport
from tests.unit.cost.samples import BILLION, cluster, columns, estimate, training


def _measured(of: Estimate, *, memory: float, time: float, offset_bytes: float = 0.0) -> Measured:
    peak = int(of.memory.allocated_bytes * memory + offset_bytes)
    rank = RankReport(
        rank=0,
        initialised_bytes=0,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak,
        device_used_bytes=peak,
        host_peak_bytes=0,
        build_s=0.0,
        engine_s=0.0,
        step_times_s=(),
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        losses=(),
        sequences_per_step=1,
        skipped_steps=0,
        allocator_retries=0,
    )
    smaller = replace(rank, rank=1, peak_allocated_bytes=peak // 2)
    return Measured(step_time_s=of.step_time_s * time, step_time_spread_s=0.0, tokens_per_s=1.0, ranks=(smaller, rank))


def _estimates(count: int) -> list[Estimate]:
    return [estimate(micro_batch_size=2 ** (index % 6), zero_stage=1 + index // 6) for index in range(count)]


def test_no_trials_change_nothing() -> None:
    assert fit_calibration(()) == Calibration()


def test_agreeing_trials_pull_the_factors_to_what_they_say() -> None:
    pairs = [(one, _measured(one, memory=1.2, time=2.0)) for one in _estimates(10)]
    fitted = fit_calibration(pairs)
    assert fitted.memory_scale == pytest.approx(1.2, rel=0.03)
    assert fitted.time_scale == pytest.approx(2.0, rel=0.08)
    assert fitted.num_points == 10
    assert fitted.time_residual_fraction < 0.1


def test_one_trial_that_is_a_little_off_is_nearly_believed() -> None:
    (one,) = _estimates(1)
    fitted = fit_calibration([(one, _measured(one, memory=1.0, time=1.05))])
    assert 1.03 < fitted.time_scale < 1.05
    assert fitted.time_residual_fraction > 0


def test_one_trial_that_is_absurdly_off_is_not_believed_whole() -> None:
    (one,) = _estimates(1)
    slower = fit_calibration([(one, _measured(one, memory=1.0, time=4.0))]).time_scale
    far = fit_calibration([(one, _measured(one, memory=1.0, time=40.0))]).time_scale
    assert 1.5 < slower < 2.5
    assert far == pytest.approx(slower, rel=0.01)  # beyond some point, more absurd teaches nothing more


def test_one_odd_trial_among_many_moves_little() -> None:
    several = _estimates(9)
    pairs = [(one, _measured(one, memory=1.0, time=1.1)) for one in several[:-1]]
    odd = (several[-1], _measured(several[-1], memory=1.0, time=20.0))
    assert fit_calibration([*pairs, odd]).time_scale == pytest.approx(fit_calibration(pairs).time_scale, rel=0.02)


def test_a_constant_on_top_is_found_as_an_offset() -> None:
    pairs = [(one, _measured(one, memory=1.0, time=1.0, offset_bytes=3.0e9)) for one in _estimates(12)]
    fitted = fit_calibration(pairs)
    for one, measured in pairs:
        corrected = one.memory.allocated_bytes * fitted.memory_scale + fitted.memory_offset_bytes
        truth = max(rank.peak_allocated_bytes for rank in measured.ranks)
        assert abs(corrected / truth - 1) < 0.6 * abs(one.memory.allocated_bytes / truth - 1) + 0.01


def test_trials_that_ran_alike_leave_no_residual() -> None:
    pairs = [(one, _measured(one, memory=1.0, time=1.0)) for one in _estimates(8)]
    fitted = fit_calibration(pairs)
    assert fitted.memory_residual_fraction == pytest.approx(0.0, abs=1e-6)
    assert fitted.time_residual_fraction == pytest.approx(0.0, abs=1e-6)


def test_a_part_that_is_off_alone_is_found_from_a_few_trials() -> None:
    """The host is three times slower than thought; trials differ in how much they wait for it."""
    several = [estimate(micro_batch_size=size, zero_stage=1, seq_len=512) for size in (1, 2, 4, 8, 16, 64)]
    pairs = []
    for one in several:
        seen = one.step_time_s + 2.0 * one.time.host_s
        pairs.append((one, _measured(one, memory=1.0, time=seen / one.step_time_s)))
    fitted = fit_calibration(pairs)
    assert fitted.host_factor > 1.3 * fitted.compute_factor
    for one, measured in pairs:
        before, after = (
            abs(time / measured.step_time_s - 1) for time in (one.step_time_s, corrected_time_s(one, fitted))
        )
        assert after < 0.5 * before + 0.03


def test_corrected_estimates_are_what_the_model_says_with_the_calibration() -> None:
    pairs = [(one, _measured(one, memory=1.0, time=1.3)) for one in _estimates(6)]
    fitted = fit_calibration(pairs)
    again = estimate_columns(
        columns(micro_batch_size=4), model=BILLION, training=training(), cluster=cluster(), calibration=fitted
    )
    plain = estimate_columns(columns(micro_batch_size=4), model=BILLION, training=training(), cluster=cluster())
    assert again.step_time_s[0] == pytest.approx(corrected_time_s(plain.record_at(0), fitted))
    assert again.kind is Provenance.FITTED


def test_a_trial_that_ran_out_is_no_longer_called_fitting() -> None:
    sure = estimate(micro_batch_size=64, zero_stage=1, data_parallel_size=8, checkpointing="full")
    assert sure.fits
    fitted = fit_calibration((), ran_out=(sure,))
    assert fitted.memory_scale > 1
    again = estimate_columns(
        columns(micro_batch_size=64, zero_stage=1, data_parallel_size=8, checkpointing="full"),
        model=BILLION,
        training=training(),
        cluster=cluster(),
        calibration=fitted,
    )
    assert not again.fits[0]


def test_a_trial_that_ran_out_as_expected_changes_nothing() -> None:
    large = estimate(micro_batch_size=512, zero_stage=1)
    assert not large.fits
    assert fit_calibration((), ran_out=(large,)) == Calibration()


def test_a_trial_that_ran_out_for_another_reason_teaches_nothing() -> None:
    small = estimate(micro_batch_size=1, zero_stage=1, data_parallel_size=8)
    assert small.memory.high_bytes < small.memory.usable_bytes / 2
    assert fit_calibration((), ran_out=(small,)) == Calibration()


def test_one_disturbed_trial_of_three_teaches_no_time() -> None:
    ones = _estimates(3)
    disturbed = [(one, _measured(one, memory=1.0, time=time)) for one, time in zip(ones, (1.02, 0.98, 6.0))]
    fitted = fit_calibration(disturbed)
    assert (fitted.time_scale, fitted.compute_factor, fitted.host_factor) == (1.0, 1.0, 1.0)
    slow = [(one, _measured(one, memory=1.0, time=3.0)) for one in ones]
    assert fit_calibration(slow).time_scale > 2.0
