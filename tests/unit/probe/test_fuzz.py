"""Whatever drivers, programs and children print: read, or left out; no error, no hang."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from planner.probe.measurements import Unusable, parse_link, parse_staircases
from planner.probe.nvidia_smi import parse_topology
from planner.probe.software import parse_software
from tests.fuzzing import lanes
from tests.unit.probe.machines import LINKS, TOPOLOGY
from tests.unit.probe.test_cluster_file import LINK

_words = sorted({*TOPOLOGY.split(), *LINKS.split()[:8], "GPU0", "GPU99", "NV999999", "\x1b[4m"})
_lines = st.lists(st.sampled_from(_words) | st.text(max_size=4), max_size=12).map("\t".join)
_screens = st.lists(_lines, max_size=8).map("\n".join)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rows", "ranks", "ops", "steps", "problems", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_answers = st.text(max_size=60) | _values.map(json.dumps) | st.integers(0, len(LINK)).map(lambda end: LINK[:end])


@lanes(_screens)
def test_any_screen_of_a_topology_gives_pairs_or_none(text: str) -> None:
    assert all(pair.first < pair.second for pair in parse_topology(text))


@lanes(_answers)
def test_any_words_of_a_child_are_a_measurement_or_unusable(said: str) -> None:
    for parse in (parse_link, parse_staircases):
        try:
            parse(said)
        except Unusable as problem:
            assert str(problem)


@lanes(_answers)
def test_any_words_about_software_are_read(said: str) -> None:
    state = parse_software(said)
    assert state is None or state.python == ""
