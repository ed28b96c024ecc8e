"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.units import (
    format_bytes,
    format_count,
    format_duration_limit,
    format_fraction,
    format_named,
    format_rate_short,
    format_seconds,
    format_tokens_per_s,
    heading_of,
    one_line,
    plural,
    printable,
)

_UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (2**20 * 310, "310 MiB"), (2**30 - 1, "1.00 GiB"), (61.34 * 2**30, "61.3 GiB")],
)
def test_bytes_of_known_sizes_read_in_the_largest_unit_of_at_least_one(size_bytes: float, expected: str) -> None:
    assert format_bytes(size_bytes) == expected


@given(st.integers(min_value=1, max_value=2**59))
def test_bytes_of_any_size_read_back_within_half_a_percent(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    assert float(number.replace(",", "")) * _UNIT_BYTES[unit] == pytest.approx(size_bytes, rel=0.006)


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [
        (0.0123, "12.3 ms"),
        (0.412, "412 ms"),
        (0.9999, "1.00 s"),
        (59.97, "60.0 s"),
        (125, "2 min 05 s"),
        (12000, "3 h 20 min"),
    ],
)
def test_seconds_of_known_durations_read_in_a_fitting_unit(duration_s: float, expected: str) -> None:
    assert format_seconds(duration_s) == expected


@pytest.mark.parametrize(("limit_s", "expected"), [(0.2, "1 s"), (100, "2 min"), (5400, "90 min"), (7200, "2 h")])
def test_limit_is_rounded_up_so_that_it_is_kept(limit_s: float, expected: str) -> None:
    assert format_duration_limit(limit_s) == expected


@pytest.mark.parametrize(
    ("rate", "long", "short"),
    [
        (812, "812 tokens/s", "812"),
        (999.7, "1.00 thousand tokens/s", "1.00 k"),
        (45000, "45.0 thousand tokens/s", "45.0 k"),
    ],
)
def test_rate_reads_in_thousands(rate: float, long: str, short: str) -> None:
    assert (format_tokens_per_s(rate), format_rate_short(rate)) == (long, short)


def test_fraction_count_and_plural_read_as_in_a_sentence() -> None:
    assert (format_fraction(0.031), format_fraction(0.05), format_fraction(0.5)) == ("3.1%", "5%", "50%")
    assert format_count(204800) == "204,800"
    assert (plural(1, "trial"), plural(2, "trial"), plural(2, "candy", "candies")) == (
        "1 trial",
        "2 trials",
        "2 candies",
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory_usable_bytes", 2**30, "1.00 GiB"),
        ("bandwidth_bytes_per_s", 3.35e12, "3.35 TB/s"),
        ("peak_bf16_flops_per_s", 0.0, "none"),
        ("tokens_per_s", 2000.0, "2.00 thousand tokens/s"),
        ("step_time_s", 0.4, "400 ms"),
        ("num_layers", 1234, "1,234"),
        ("gated", True, "yes"),
        ("source", "data sheet", "data sheet"),
    ],
)
def test_named_value_takes_the_unit_of_its_suffix(name: str, value: float | str, expected: str) -> None:
    assert format_named(name, value) == expected


def test_heading_drops_the_unit_that_the_cells_carry() -> None:
    assert heading_of("memory_usable_bytes") == "memory usable"
    assert heading_of("tokens_per_s") == "speed"
    assert heading_of("name") == "name"


@given(st.text())
def test_printable_text_holds_nothing_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert len(one_line(text).splitlines()) <= 1
