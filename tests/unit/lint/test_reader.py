"""The reader: what hjson takes, with lines; what strict JSON does not take, noted; what nobody takes, refused."""

from __future__ import annotations

import json
import time

import pytest

from planner.lint import read_document
from planner.lint.reader import MAX_DEPTH, MAX_VALUES
from planner.rules import SyntaxKind


def kinds(text: str) -> list[SyntaxKind]:
    return [fact.kind for fact in read_document(text).syntax]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": {"c": [1, 2.5, true, null, "x"]}}', {"a": 1, "b": {"c": [1, 2.5, True, None, "x"]}}),
        ('{"a": 5e8}', {"a": 500_000_000}),
        ('{"a": "\\u0041\\ud83d\\ude00\\n"}', {"a": "A\U0001f600\n"}),
        ('{"a": 1, # hash\n // slashes\n /* block */ "b": 2,}', {"a": 1, "b": 2}),
        ('{"a": 1\n"b": 2}', {"a": 1, "b": 2}),
        ("{a: hello world\nb: 'it'}", {"a": "hello world", "b": "it"}),
        ("a: 1\nb: 2\n", {"a": 1, "b": 2}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ("{\n  a: '''\n  one\n    two\n  '''\n}", {"a": "one\ntwo"}),
        ('{"a": SIZE,\n"b": 1}', {"a": "SIZE,", "b": 1}),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_text_that_hjson_takes_is_read_as_it_reads_it(text: str, value: dict) -> None:
    document = read_document(text)
    assert not document.unreadable
    assert document.value == value


def test_strict_json_leaves_nothing_to_note() -> None:
    assert kinds(json.dumps({"a": {"b": [1, {"c": 1e-5}]}, "d": "x # y"}, indent=2)) == []


@pytest.mark.parametrize(
    ("text", "kind", "line", "column"),
    [
        ('{"a": 1\n  "b": 2}', SyntaxKind.MISSING_COMMA, 2, 3),
        ('{\n"a": 1,\n}', SyntaxKind.TRAILING_COMMA, 2, 7),
        ('{\n// x\n"a": 1}', SyntaxKind.COMMENT, 2, 1),
        ('{"a": 1,\n "a": 2}', SyntaxKind.DUPLICATE_KEY, 2, 2),
        ("{a: 1}", SyntaxKind.UNQUOTED, 1, 2),
        ('{"a": True\n}', SyntaxKind.UNQUOTED, 1, 7),
        ('{"a": NaN\n}', SyntaxKind.NOT_A_NUMBER, 1, 7),
        ('\ufeff{"a": 1}', SyntaxKind.BYTE_ORDER_MARK, 1, 1),
        ("a: 1", SyntaxKind.OTHER, 1, 1),
    ],
)
def test_liberty_is_noted_with_its_place(text: str, kind: SyntaxKind, line: int, column: int) -> None:
    fact = next(fact for fact in read_document(text).syntax if fact.kind is kind)
    assert (fact.line, fact.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no configuration"),
        ("// only a comment", "holds no configuration"),
        ("[1, 2]", "not a list"),
        ('{"a": 1', "closing }"),
        ('{"a": [1', "closing ]"),
        ('{"a" 1}', "colon"),
        ('{"a": }', "value is missing"),
        ('{"a": "x', "never ends"),
        ('{"a": "x\ny"}', "never ends"),
        ('{"a": "\\q"}', "backslash"),
        ("{/* ", "never ends"),
        ('{"a": 1} x', "follows after the end"),
        ('{"a": 1,, "b": 2}', "two commas"),
        ('{"a": 1e999}', "larger than any"),
        ('{"a": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"' + "k" * 501 + '": 1}', "501 characters"),
        ('{"a": ' * (MAX_DEPTH + 2) + "1" + "}" * (MAX_DEPTH + 2), "nested deeper"),
        ("{" + ", ".join(f'"k{n}": 1' for n in range(MAX_VALUES + 1)) + "}", "more than"),
    ],
)
def test_text_that_cannot_be_read_says_why(text: str, words: str) -> None:
    document = read_document(text)
    assert document.unreadable
    assert words in document.syntax[0].detail
    assert document.value == {}


@pytest.mark.parametrize(
    "text",
    [
        "{" * 500_000,
        "[" * 500_000,
        '{"a": [' + "1 " * 400_000,
        '{"a": ' + "n" * 900_000,
        "{" + "/**/" * 250_000,
        '{"' + "\\" * 900_000,
        "{a: '''" + "x\n" * 400_000,
        '{"a": "' + "'" * 900_000,
        "\n" * 1_000_000,
        '{"a": n' + ",n" * 400_000,
    ],
)
def test_hostile_text_of_a_megabyte_is_answered_and_does_not_hang(text: str) -> None:
    began = time.monotonic()
    read_document(text)
    assert time.monotonic() - began < 60


def test_line_of_a_missing_key_is_its_blocks() -> None:
    document = read_document('{\n "zero_optimization": {\n  "stage": 3\n }\n}')
    assert document.line_of("zero_optimization.stage") == 3
    assert document.line_of("zero_optimization.offload_param.nvme_path") == 2
    assert document.line_of("gradient_clipping") == 1
