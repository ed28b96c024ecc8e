"""The linter's reader against the `hjson` package, which DeepSpeed reads files with.

Left out: text in three quotes on the first line (hjson ends with an IndexError), `\\u` with blanks in its digits (hjson
takes them), numbers without end (OverflowError), depth (RecursionError).
"""

from __future__ import annotations

import hjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.lint import read_document

PIECES = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", ",", '"', "'", "#", "//", "/*", "*/", "\n", "\r\n", "\t", " ", "true", "null", "a"),
        *(
            "b c",
            "-1",
            "0",
            "5e8",
            "1.5",
            "01",
            "e5",
            "\\n",
            '"k": 1',
            "k: v",
            '"k": [1, 2]',
            '"k": {"l": true}',
            "NaN",
        ),
    ]
)
SEEDS = st.sampled_from(
    ['{"a": 1, "b": [1, 2.5, "x"], "c": {"d": true}}', "{\n a: 1\n b: hello world\n}", "a: 1\nb: 2", '{"a": 1,\n}', ""]
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    text = draw(SEEDS)
    for piece in draw(st.lists(PIECES, max_size=8)):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + piece + text[place + draw(st.integers(0, 3)) :]
    return text


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts())
def test_reader_takes_what_hjson_takes_and_reads_the_same(text: str) -> None:
    if "'''" in text:
        return
    document = read_document(text)
    try:
        value = hjson.loads(text, object_pairs_hook=dict)
    except (hjson.HjsonDecodeError, IndexError, OverflowError):
        assert document.unreadable
        return
    if not isinstance(value, dict) or value == {}:  # a single word, or nothing: no configuration
        return
    assert not document.unreadable
    assert document.value == value
