"""Whatever the file holds: findings or an error in three sentences; no traceback, no hang, nothing changed on the disk.

A few hundred inputs a parser in the default lane, 100,000 in the slow one.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import strategies as st

from planner.lint import (
    as_deepspeed,
    decode,
    decode_base64,
    fix_document,
    lint_document,
    looks_like_accelerate,
    read_accelerate,
    read_document,
    read_trainer_arguments,
)
from planner.rules import ConfigContext, Consumer, known_keys, mentions_auto
from tests.fuzzing import lanes, only_planner_errors

BLOCKS = known_keys("0.19.8")
NAMES = sorted({name for block in BLOCKS.values() for name in block.keys})
PIECES = st.sampled_from(
    [
        *(
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            '"',
            "'",
            "'''",
            "\\",
            "\\u",
            "\\ud83d",
            "#",
            "//",
            "/*",
            "*/",
            "\n",
            "\r",
            "\t",
        ),
        *(" ", "true", "false", "null", "True", "NaN", "-Infinity", "1e999", "0", "-", "5e8", "01", "auto", "\ufeff"),
        *("\u2028", "\x00", "\x85", "é", "\U0001f600", "--", "=", "&a", "*a", "!!x", "- ", "? ", "|", ">", "---", "<<"),
        *(
            "zero_optimization",
            "stage",
            "fp16",
            "enabled",
            "train_batch_size",
            "optimizer",
            "params",
            "deepspeed_config",
        ),
    ]
)
texts = st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["auto", "true", "cpu", "nvme", "5e8", "${X}", "CONFIG_SIZE", "AdamW", "WarmupLR", 10**30, -1, 0]),
    st.text(max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Known names in known blocks with arbitrary values."""
    config: dict[str, Any] = {}
    for path in draw(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=4)):
        current: Any = config
        for part in path.split(".") if path else ():
            following = current.setdefault(part, {})
            current = following if isinstance(following, dict) else {}
        names = st.sampled_from(sorted(BLOCKS[path].keys) or ["x"])
        current.update(draw(st.dictionaries(names | st.text(max_size=5), values, max_size=5)))
    return config


contexts = st.builds(
    ConfigContext,
    world_size=st.integers(0, 16),
    tensor_parallel_size=st.integers(1, 4),
    pipeline_parallel_size=st.integers(1, 4),
    sequence_parallel_size=st.integers(1, 4),
    consumer=st.sampled_from(Consumer),
    consumer_stated=st.booleans(),
    version_stated=st.booleans(),
    deepspeed_version=st.sampled_from(["0.14.0", "0.15.4", "0.17.1", "0.19.6", "0.19.8"]),
    client_optimizer=st.sampled_from([True, False, None]),
    native_moe=st.sampled_from([True, None]),
    gpu_memory_bytes=st.sampled_from([0, 16 * 10**9]),
    trainer_args=st.none() | st.dictionaries(st.sampled_from(["learning_rate", "fp16", "max_steps", "optim"]), scalars),
    accelerate=st.none()
    | st.dictionaries(st.sampled_from(["mixed_precision", "num_processes", "deepspeed_config", "fsdp_config"]), values),
)


@lanes(st.binary(max_size=200) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    def work() -> None:
        document = read_document(decode(content, label="x"))
        lines = content.count(b"\n") + content.count(b"\r") + 1
        assert all(1 <= fact.line <= lines for fact in document.syntax)
        mentions_auto(document.value)

    only_planner_errors(work)


@lanes(configurations())
def test_any_json_is_read_as_json_reads_it(config: dict[str, Any]) -> None:
    """Whole numbers below 1e10 lose their dot, as in hjson."""
    document = read_document(json.dumps(config))
    assert not document.unreadable
    assert document.value == config
    assert document.syntax == ()


@lanes(st.tuples(configurations(), contexts))
def test_any_configuration_gets_findings_and_a_correction_that_is_json(given_: tuple[dict[str, Any], Any]) -> None:
    config, context = given_
    text = json.dumps(config, indent=2)
    document = read_document(text)
    result = lint_document(document, context)
    for finding in (*result.findings, *result.notes):
        assert finding.message
        assert finding.why
        assert finding.fix
        assert 1 <= finding.line <= text.count("\n") + 1
        assert len(finding.message) < 2000
    fixed = fix_document(document, context)
    json.loads(fixed.text)
    json.dumps([finding.patch for finding in result.findings], allow_nan=False)


@lanes(texts)
def test_any_text_is_trainer_arguments_or_refused(text: str) -> None:
    only_planner_errors(lambda: read_trainer_arguments(text, label="x"))


@lanes(texts | values.map(json.dumps))
def test_any_text_is_accelerates_file_or_refused(text: str) -> None:
    def work() -> None:
        file = read_accelerate(text, label="x")
        looks_like_accelerate(file.value)
        lint_document(as_deepspeed(file), ConfigContext(accelerate=file.value, from_accelerate=True))

    only_planner_errors(work)


@lanes(st.text(max_size=80) | st.binary(max_size=60).map(lambda content: base64.urlsafe_b64encode(content).decode()))
def test_any_word_is_base64_or_none(word: str) -> None:
    text = decode_base64(word)
    assert text is None or text.lstrip().startswith("{")
