"""Each way to run a layout is one candidate, and settings without effect make none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InputError
from planner.space import axis_values, enumerate_candidates
from planner.space.modes import mode_table
from planner.spec import CrossEntropy, OffloadDevice, Overlap, SearchRanges, TorchCompile, Tuning
from planner.spec.columns import candidate_at
from planner.spec.tuning import ELEMENT_STEPS, TUNING_VALUES, tuning_code, tuning_from_code
from planner.spec.tuning_columns import has_setting, setting_codes, with_setting
from tests.unit.space.jobs import job


def test_tuning_code_and_back_is_the_same_for_every_value_of_every_setting() -> None:
    assert tuning_code(Tuning()) == 0
    for name, values in TUNING_VALUES.items():
        for value in values:
            tuning = Tuning(**{name: value})
            assert tuning_from_code(tuning_code(tuning)) == tuning
    last = Tuning(**{name: values[-1] for name, values in TUNING_VALUES.items()})
    assert tuning_from_code(tuning_code(last)) == last and 0 < tuning_code(last) < 2**62


def test_setting_of_a_column_is_read_and_changed_alone() -> None:
    column = np.array([0, tuning_code(Tuning(torch_compile=TorchCompile.WHOLE, reduce_bucket_size=ELEMENT_STEPS[-1]))])
    chunked = with_setting(column, "cross_entropy", CrossEntropy.CHUNKED)
    assert has_setting(chunked, "cross_entropy", CrossEntropy.CHUNKED).all()
    assert (setting_codes(chunked, "torch_compile") == setting_codes(column, "torch_compile")).all()
    assert tuning_from_code(int(chunked[1])).reduce_bucket_size == ELEMENT_STEPS[-1]


def test_default_axes_have_one_mode_a_stage_and_precision() -> None:
    table = mode_table(axis_values(job()))
    assert len(table) == 4 and not table.tuning.any()


def test_setting_without_effect_at_a_stage_is_not_told_apart_there() -> None:
    asked = job(reduce_bucket_size=(50_000_000, 100_000_000), overlap_comm=(Overlap.ON, Overlap.OFF))
    table = mode_table(axis_values(asked))
    assert np.bincount(table.zero_stage).tolist() == [1, 4, 4, 4]
    stage_0 = tuning_from_code(int(table.tuning[table.zero_stage == 0][0]))
    assert stage_0 == Tuning()


def test_listed_settings_reach_the_candidates() -> None:
    asked = job(
        zero_stage=(2,),
        torch_compile=tuple(TorchCompile),
        cross_entropy=(CrossEntropy.CHUNKED,),
        offload_optimizer=(OffloadDevice.CPU,),
    )
    columns = enumerate_candidates(asked).columns
    found = {
        candidate_at(columns, row, num_layers=asked.model.num_layers).tuning.torch_compile
        for row in range(0, len(columns), max(len(columns) // 200, 1))
    }
    assert found == set(TorchCompile)
    assert has_setting(columns.tuning, "cross_entropy", CrossEntropy.CHUNKED).all()


def test_too_many_listed_values_are_refused_with_their_number() -> None:
    steps = ELEMENT_STEPS[:8]
    ranges = SearchRanges(
        reduce_bucket_size=steps,
        allgather_bucket_size=steps,
        stage3_prefetch_bucket_size=steps,
        stage3_max_live_parameters=steps,
    )
    with pytest.raises(InputError, match=r"16,384 ways to run each layout"):
        mode_table(axis_values(replace(job(), ranges=ranges)))
