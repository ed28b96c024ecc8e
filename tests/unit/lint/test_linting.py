"""Findings over releases, with lines; and the corrected file."""

from __future__ import annotations

import json

import pytest

from planner.errors import InputError, NotExpressible
from planner.lint import decode, decode_base64, fix_document, lint_document, read_document
from planner.rules import RULES, ConfigContext, Consumer, Severity

CLEAN = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 1, "overlap_comm": False},
}


def lint(text: str, **context: object):  # type: ignore[no-untyped-def]
    return lint_document(read_document(text), ConfigContext(**{"world_size": 8, **context}))  # type: ignore[arg-type]


def codes(result) -> set[tuple[str, str]]:  # type: ignore[no-untyped-def]
    return {(item.code, item.severity.value) for item in result.findings}


def test_clean_file_has_no_findings_and_its_batch() -> None:
    result = lint(json.dumps(CLEAN))
    assert result.ok
    assert result.findings == ()
    assert result.batch is not None
    assert result.batch.gradient_accumulation_steps == 4


def test_finding_has_the_line_of_its_key() -> None:
    text = json.dumps({**CLEAN, "zero_optimization": {"stage": 1, "overlap_com": False}}, indent=2)
    (finding,) = [item for item in lint(text).findings if item.code == "key-unknown-refused"]
    assert "overlap_com" in text.splitlines()[finding.line - 1]


def test_without_a_release_what_only_newer_ones_refuse_is_a_warning_that_names_them() -> None:
    text = json.dumps({**CLEAN, "nebula": {}})
    assert lint(text).ok
    (finding,) = lint(text).findings
    assert finding.severity is Severity.WARNING
    assert "0.19.7, 0.19.8" in finding.message
    assert finding.patch is None
    assert not lint(text, deepspeed_version="0.19.8", version_stated=True).ok
    assert lint(text, deepspeed_version="0.19.6", version_stated=True).findings == ()


def test_without_a_release_a_file_that_none_takes_is_an_error() -> None:
    """Old releases refuse the batch keys beside elasticity, new ones elasticity itself."""
    elastic = {"enabled": True, "max_train_batch_size": 64, "micro_batch_sizes": [2]}
    result = lint(json.dumps({**CLEAN, "elasticity": elastic}))
    assert not result.ok
    assert {("key-removed", "error"), ("elastic-batch", "error")} <= codes(result)


def test_key_of_the_future_is_information_where_the_newest_release_takes_it() -> None:
    text = json.dumps({**CLEAN, "zero_optimization": {"stage": 1, "overlap_comm": False, "parameter_alignment": True}})
    assert lint(text).ok
    assert ("key-too-new", "info") in codes(lint(text))


def test_release_before_the_tables_is_refused() -> None:
    with pytest.raises(NotExpressible, match=r"0\.13\.5"):
        lint(json.dumps(CLEAN), deepspeed_version="0.13.5", version_stated=True)


SYNTAX = [
    ("syntax-unreadable", '{"a": ', Consumer.DEEPSPEED, "error"),
    ("syntax-key-twice", '{"train_batch_size": 8, "train_batch_size": 8}', Consumer.DEEPSPEED, "error"),
    ("syntax-key-twice", '{"train_batch_size": 8, "train_batch_size": 8}', Consumer.HUGGINGFACE, "warning"),
    ("syntax-comma-missing", '{"train_batch_size": 8\n"gradient_clipping": 1}', Consumer.DEEPSPEED, "error"),
    ("syntax-not-strict", '{"train_batch_size": 8, // eight\n}', Consumer.DEEPSPEED, "info"),
    ("syntax-not-strict", '{"train_batch_size": 8, // eight\n}', Consumer.HUGGINGFACE, "error"),
    ("syntax-byte-order-mark", '\ufeff{"train_batch_size": 8}', Consumer.DEEPSPEED, "info"),
    ("syntax-not-a-number", '{"train_batch_size": 8, "gradient_clipping": NaN\n}', Consumer.DEEPSPEED, "error"),
]


@pytest.mark.parametrize(("code", "text", "consumer", "severity"), SYNTAX)
def test_liberty_of_the_text_is_as_grave_as_its_reader_is_strict(code, text, consumer, severity) -> None:  # type: ignore[no-untyped-def]
    assert (code, severity) in codes(lint(text, consumer=consumer))


def test_every_rule_about_the_text_is_tested() -> None:
    assert {rule.name for rule in RULES if rule.name.startswith("syntax-")} == {code for code, *_rest in SYNTAX}


def test_unreadable_file_shows_that_alone() -> None:
    result = lint('{"zero_optimization": {"stage": 9}')
    assert [item.code for item in result.findings] == ["syntax-unreadable"]
    assert result.notes == ()


MENDED = [
    ({"zero_optimization": {"stage": 3, "stage3_param_persitence_threshold": 7}}, "stage3_param_persistence_threshold"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}, '"device": "cpu"'),
    ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, '"offload_optimizer"'),
    ({"zero_optimization": {"stage": 2, "zero_force_ds_cpu_optimizer": False}}, '\n  "zero_force_ds_cpu_optimizer"'),
    ({"fp16": True}, '"enabled": true'),
    ({"bf16": {"enabled": "true"}}, '"enabled": true'),
    ({"optimizer": {"type": "Adam", "params": {"lr": "1e-4", "max_grad_norm": 0.5}}}, '"gradient_clipping": 0.5'),
    ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}, '"gradient_accumulation_steps": 4'),
    ({"per_device_train_batch_size": 2}, '"train_micro_batch_size_per_gpu": 2'),
    ({"gradient_accumulation_steps": "4"}, '"gradient_accumulation_steps": 4'),
]


@pytest.mark.parametrize(("part", "words"), MENDED)
def test_fault_that_needs_no_decision_is_mended(part: dict, words: str) -> None:
    given = {**CLEAN, **part}
    if "max_grad_norm" in json.dumps(part):
        del given["gradient_clipping"]
    if "per_device_train_batch_size" in part:
        del given["train_micro_batch_size_per_gpu"]
    context = ConfigContext(world_size=8)
    fixed = fix_document(read_document(json.dumps(given)), context)
    assert fixed.mended
    assert words in fixed.text
    assert fixed.result.ok
    json.loads(fixed.text)
    again = fix_document(fixed.document, context)
    assert (again.mended, again.text) == ((), fixed.text)


def test_what_was_mended_is_told_with_old_and_new_value() -> None:
    faulty = {**CLEAN, "gradient_accumulation_steps": "4", "zero_optimisation": {"stage": 2}}
    del faulty["zero_optimization"]
    fixed = fix_document(read_document(json.dumps(faulty)), ConfigContext(world_size=8))
    told = [change for changes in fixed.changes for change in changes]
    assert len(fixed.changes) == len(fixed.mended)
    assert 'gradient_accumulation_steps: "4" -> 4' in told
    assert "zero_optimisation -> zero_optimization" in told


def test_clean_file_stays_what_it_is() -> None:
    fixed = fix_document(read_document(json.dumps(CLEAN)), ConfigContext(world_size=8))
    assert fixed.mended == ()
    assert json.loads(fixed.text) == CLEAN


def test_fault_that_needs_a_decision_is_left_and_told() -> None:
    both = {**CLEAN, "fp16": {"enabled": True}, "bf16": {"enabled": True, "check_grad_overflow": True}}
    fixed = fix_document(read_document(json.dumps(both)), ConfigContext(world_size=8))
    assert not fixed.result.ok
    assert json.loads(fixed.text) == both


def test_comments_are_lost_and_it_is_said() -> None:
    fixed = fix_document(read_document('{"train_batch_size": 8, // eight\n}'), ConfigContext())
    assert fixed.lost_comments
    assert json.loads(fixed.text)["train_batch_size"] == 8


def test_unreadable_file_cannot_be_corrected() -> None:
    with pytest.raises(InputError, match="line 1 column"):
        fix_document(read_document('{"a": '), ConfigContext())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x01", "binary"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b" " * ((1 << 20) + 1), "larger than"),
    ],
)
def test_what_is_no_text_is_refused_in_three_sentences(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        decode(content, label="x")
    assert refusal.value.why
    assert refusal.value.fix


def test_base64_is_read_as_deepspeeds_launcher_passes_it() -> None:
    import base64

    assert decode_base64(base64.urlsafe_b64encode(b'{"train_batch_size": 8}').decode()) == '{"train_batch_size": 8}'
    assert decode_base64("ds_config") is None
    assert decode_base64("configs/missing.json") is None
