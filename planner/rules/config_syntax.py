"""The text of a configuration: what DeepSpeed's reader takes and others do not, and keys that are there twice.

Owns what such a fact means for whom. The facts are found by the linter's reader.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import Breach, ConfigView, Consumer, Severity, SyntaxFact, SyntaxKind
from planner.rules.rule import Rule

_STRICT = "DeepSpeed reads files with hjson and takes it; Hugging Face and strict JSON readers do not"
_MOST = 20


def _of(view: ConfigView, *kinds: SyntaxKind) -> list[SyntaxFact]:
    return [fact for fact in view.syntax if fact.kind in kinds]


def _unreadable(view: ConfigView) -> Iterable[Breach]:
    for fact in _of(view, SyntaxKind.UNREADABLE):
        yield Breach(
            key=fact.key,
            message=f"line {fact.line} column {fact.column}: {fact.detail}",
            fix="mend the file there",
            line=fact.line,
        )


def _twice(view: ConfigView) -> Iterable[Breach]:
    for fact in _of(view, SyntaxKind.DUPLICATE_KEY)[:_MOST]:
        yield Breach(
            key=fact.key,
            message=f"the key is there twice: {fact.detail}",
            fix="remove one of the two",
            severity=Severity.WARNING if view.resolves_auto else None,
            why="Hugging Face reads the file as JSON, in which the last one wins without a word"
            if view.resolves_auto
            else "",
            line=fact.line,
        )


def _missing_comma(view: ConfigView) -> Iterable[Breach]:
    """An accident, even where it is tolerated; a warning where it is told that DeepSpeed alone reads the file."""
    told = view.context.consumer_stated and view.context.consumer is Consumer.DEEPSPEED
    for fact in _of(view, SyntaxKind.MISSING_COMMA)[:_MOST]:
        yield Breach(
            key=fact.key,
            message=f"a comma is missing before line {fact.line} column {fact.column}: no strict JSON",
            fix="write a comma at the end of the entry before it",
            severity=Severity.WARNING if told else None,
            line=fact.line,
        )


def _not_strict(view: ConfigView) -> Iterable[Breach]:
    kinds = (SyntaxKind.COMMENT, SyntaxKind.TRAILING_COMMA, SyntaxKind.UNQUOTED, SyntaxKind.OTHER)
    facts = _of(view, *kinds)
    for kind in dict.fromkeys(fact.kind for fact in facts):
        first = next(fact for fact in facts if fact.kind is kind)
        count = sum(1 for fact in facts if fact.kind is kind)
        more = f" (and {count - 1} more)" if count > 1 else ""
        yield Breach(
            key=first.key,
            message=f"{first.detail or kind.value} at line {first.line} column {first.column}{more}: no strict JSON",
            fix="write plain JSON (--fix does)",
            severity=Severity.ERROR if view.resolves_auto else None,
            line=first.line,
        )


def _byte_order_mark(view: ConfigView) -> Iterable[Breach]:
    for fact in _of(view, SyntaxKind.BYTE_ORDER_MARK):
        yield Breach(
            key="",
            message="the file begins with a byte order mark",
            fix="save it as UTF-8 without one (--fix does)",
            severity=Severity.ERROR if view.resolves_auto else None,
            why="Python's json refuses it" if view.resolves_auto else "",
            line=fact.line,
        )


def _not_a_number(view: ConfigView) -> Iterable[Breach]:
    for fact in _of(view, SyntaxKind.NOT_A_NUMBER)[:_MOST]:
        yield Breach(
            key=fact.key,
            message=f"{fact.detail} is no JSON: Hugging Face reads a number, DeepSpeed a word",
            fix="write a number",
            line=fact.line,
        )


SYNTAX_RULES: tuple[Rule, ...] = (
    Rule(
        name="syntax-unreadable",
        severity=Severity.ERROR,
        summary="the text is neither JSON nor hjson: no program can read it",
        source="hjson 3.1.0 (seen); Python's json",
        check=_unreadable,
    ),
    Rule(
        name="syntax-key-twice",
        severity=Severity.ERROR,
        summary="DeepSpeed refuses a file in which a key is there twice",
        source="DeepSpeed 0.19.8, runtime/config_utils.py: dict_raise_error_on_duplicate_keys",
        check=_twice,
    ),
    Rule(
        name="syntax-comma-missing",
        severity=Severity.ERROR,
        summary=_STRICT,
        source="hjson 3.1.0 (seen); transformers and accelerate: json.load",
        check=_missing_comma,
    ),
    Rule(
        name="syntax-not-strict",
        severity=Severity.INFO,
        summary=_STRICT,
        source="hjson 3.1.0 (seen); transformers and accelerate: json.load",
        check=_not_strict,
    ),
    Rule(
        name="syntax-byte-order-mark",
        severity=Severity.INFO,
        summary="hjson skips the mark, other readers stumble over it",
        source="hjson 3.1.0, decoder.py; Python's json.decoder",
        check=_byte_order_mark,
    ),
    Rule(
        name="syntax-not-a-number",
        severity=Severity.ERROR,
        summary="NaN and Infinity are extensions of some JSON readers",
        source="hjson 3.1.0 (seen); Python's json",
        check=_not_a_number,
    ),
)
