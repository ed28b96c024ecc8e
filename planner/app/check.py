"""The use case `check`: gather what is told about a configuration, lint it, write the corrected file when asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.app.check_plan import with_plan_beside
from planner.app.check_request import CheckedFinding, CheckRequest, CheckResult, ConfigReader
from planner.app.check_source import LONGEST_NAME, CheckedSource, exists, read_source, target_of
from planner.catalog import load_gpu
from planner.catalog.documents import MAX_MODEL_CONFIG_BYTES, parse_json_object, read_text
from planner.catalog.entries import default_folders, find_entry
from planner.errors import InputError, NotExpressible
from planner.lint import (
    MAX_BYTES,
    Document,
    LintResult,
    fix_document,
    lint_document,
    read_trainer_arguments,
)
from planner.rules import ConfigContext, Consumer, Finding, ModelFacts, mentions_auto, parse_release
from planner.rundir.atomic import write_whole

_GIB = 1 << 30


def check_config_file(request: CheckRequest) -> CheckResult:
    """Lint one configuration; with `write`, put the corrected file down and lint that.

    Raises InputError for what is no text, no file, or cannot be written, and for a DeepSpeed before 0.14.
    """
    _require_known_release(request.deepspeed_version)
    source = read_source(request)
    request, plan_path = with_plan_beside(request, source.path)
    context = _context(source, request)
    if not request.write:
        answer = _answer(lint_document(source.document, context), source.document, source=source, context=context)
        return replace(answer, plan=plan_path)
    target = target_of(source, request)
    fixed = fix_document(source.document, context)
    answer = _answer(fixed.result, fixed.document, source=source, context=context)
    written = target if fixed.mended or source.document.syntax or target != source.path else None
    if written is not None:
        write_whole(written, fixed.text.encode("utf-8"))
    return replace(
        answer,
        plan=plan_path,
        mended=tuple(
            replace(shown, changes=changes)
            for shown, changes in zip(_shown(fixed.mended, source.document, source), fixed.changes)
        ),
        written=written,
        lost_comments=fixed.lost_comments and written is not None,
    )


def _require_known_release(version: str) -> None:
    try:
        parse_release(version)
    except NotExpressible as problem:
        raise InputError(f"--deepspeed-version: {problem.error}", why=problem.why, fix=problem.fix) from None


def _context(source: CheckedSource, request: CheckRequest) -> ConfigContext:
    arguments = _trainer_arguments(request.trainer_args) if request.trainer_args else None
    accelerate = source.accelerate.value if source.accelerate is not None else None
    guessed = arguments is not None or accelerate is not None or mentions_auto(source.document.value)
    told = Consumer(request.consumer.value) if request.consumer is not None else None
    client = request.client_optimizer
    gpu = load_gpu(request.gpu) if request.gpu else None
    memory = int(request.gpu_memory_gib * _GIB) or (gpu.memory_usable_bytes if gpu is not None else 0)
    return ConfigContext(
        world_size=request.world_size or _processes(accelerate),
        tensor_parallel_size=request.tensor_parallel_size,
        pipeline_parallel_size=request.pipeline_parallel_size,
        sequence_parallel_size=request.sequence_parallel_size,
        consumer=told or (Consumer.HUGGINGFACE if guessed else Consumer.DEEPSPEED),
        consumer_stated=told is not None,
        deepspeed_version=request.deepspeed_version,
        version_stated=bool(request.deepspeed_version),
        device=gpu.device if gpu is not None else None,
        client_optimizer=None if not client else client.lower() != "none",
        client_optimizer_name="" if client.lower() == "none" else client,
        native_moe=request.native_moe or None,
        model=_model_facts(request.model) if request.model else None,
        gpu_memory_bytes=memory,
        gpu_has_bf16=gpu.peak_bf16_flops_per_s > 0 if gpu is not None else None,
        trainer_args=arguments,
        accelerate=accelerate,
        from_accelerate=source.from_accelerate,
    )


def _processes(accelerate: Mapping[str, Any] | None) -> int:
    count = (accelerate or {}).get("num_processes")
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 10**7 else 0


def _trainer_arguments(given: str) -> dict[str, Any]:
    path = Path(given)
    if len(given) < LONGEST_NAME and "\n" not in given and not given.lstrip().startswith(("-", "{")):
        text = read_text(path, what="file of Trainer arguments", max_bytes=MAX_BYTES)
        return read_trainer_arguments(text, label=str(path))
    if len(given) > MAX_BYTES:
        raise InputError(
            "--trainer-args is too long", why=f"at most {MAX_BYTES} characters are read", fix="give a file"
        )
    return read_trainer_arguments(given, label="--trainer-args")


def _model_facts(name: str) -> ModelFacts:
    """What of a model's config.json bears on the file; `name` as `load_model` takes it, but any model's file counts."""
    entry = find_entry("models", name, default_folders())
    path = entry.path if entry is not None else Path(name)
    path = path / "config.json" if exists(path) and path.is_dir() else path
    text = read_text(path, what="config.json of a model", max_bytes=MAX_MODEL_CONFIG_BYTES)
    config = parse_json_object(text, label=str(path))
    inner = config.get("text_config")
    return ModelFacts(
        hidden_size=_number(config, "hidden_size", "hidden_sizes"),
        inner_hidden_size=_number(inner, "hidden_size", "hidden_sizes") if isinstance(inner, dict) else 0,
        num_heads=_number(config, "num_attention_heads", "n_head"),
        num_kv_heads=_number(config, "num_key_value_heads"),
        num_experts=_number(config, "num_experts", "num_local_experts", "n_routed_experts"),
    )


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value:
            value = max((item for item in value if isinstance(item, int)), default=0)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            return value
    return 0


def _answer(result: LintResult, document: Document, *, source: CheckedSource, context: ConfigContext) -> CheckResult:
    batch = result.batch
    return CheckResult(
        label=source.label,
        ok=result.ok,
        consumer=ConfigReader(context.consumer.value),
        releases=result.releases,
        findings=_shown(result.findings, document, source),
        notes=_shown(result.notes, document, source),
        data_parallel_size=result.data_parallel_size,
        batch=()
        if batch is None
        else (
            ("train_batch_size", batch.train_batch_size),
            ("train_micro_batch_size_per_gpu", batch.micro_batch_size),
            ("gradient_accumulation_steps", batch.gradient_accumulation_steps),
        ),
    )


def _shown(findings: Iterable[Finding], document: Document, source: CheckedSource) -> tuple[CheckedFinding, ...]:
    return tuple(_checked(finding, document, source) for finding in findings)


def _checked(finding: Finding, document: Document, source: CheckedSource) -> CheckedFinding:
    """A finding about accelerate's file has its line there."""
    file, line, text = source.label, finding.line, document.line_text(finding.line)
    beside = source.accelerate
    if beside is not None and finding.code.startswith("accelerate-") and finding.key in beside.places:
        line = beside.places[finding.key][0]
        file, text = beside.label, beside.text[line - 1]
    return CheckedFinding(
        file=file,
        code=finding.code,
        severity=finding.severity.value,
        key=finding.key,
        line=line,
        text=text,
        message=finding.message,
        why=finding.why,
        fix=finding.fix,
        patch=finding.patch or {},
    )
