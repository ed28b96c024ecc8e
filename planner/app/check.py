"""The use case `check`: gather what is told about a configuration, lint it, write the corrected file when asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.app.check_request import CheckedFinding, CheckRequest, CheckResult, ConfigReader
from planner.catalog import load_gpu
from planner.catalog.documents import MAX_MODEL_CONFIG_BYTES, parse_json_object, read_text
from planner.catalog.entries import default_folders, find_entry
from planner.errors import InputError, NotExpressible
from planner.lint import (
    MAX_BYTES,
    AccelerateFile,
    Document,
    LintResult,
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
from planner.rules import ConfigContext, Consumer, Finding, ModelFacts, accelerate_block, mentions_auto, parse_release
from planner.rundir.atomic import write_whole
from planner.spec._record import record

_GIB = 1 << 30
_YAML_SUFFIXES = (".yaml", ".yml")
_LONGEST_NAME = 4096


@record
class _Source:
    """A configuration with where it came from. `path` None: nowhere that could be written back."""

    document: Document
    label: str
    path: Path | None
    accelerate: AccelerateFile | None
    from_accelerate: bool = False


def check_config_file(request: CheckRequest) -> CheckResult:
    """Lint one configuration; with `write`, put the corrected file down and lint that.

    Raises InputError for what is no text, no file, or cannot be written, and for a DeepSpeed before 0.14.
    """
    _require_known_release(request.deepspeed_version)
    source = _read_source(request)
    context = _context(source, request)
    if not request.write:
        return _answer(lint_document(source.document, context), source.document, source=source, context=context)
    target = _target(source, request)
    fixed = fix_document(source.document, context)
    answer = _answer(fixed.result, fixed.document, source=source, context=context)
    written = target if fixed.mended or source.document.syntax or target != source.path else None
    if written is not None:
        write_whole(written, fixed.text.encode("utf-8"))
    return replace(
        answer,
        mended=_shown(fixed.mended, source.document, source),
        written=written,
        lost_comments=fixed.lost_comments and written is not None,
    )


def _require_known_release(version: str) -> None:
    try:
        parse_release(version)
    except NotExpressible as problem:
        raise InputError(f"--deepspeed-version: {problem.error}", why=problem.why, fix=problem.fix) from None


def _read_source(request: CheckRequest) -> _Source:
    beside = _read_accelerate_file(request.accelerate_config) if request.accelerate_config is not None else None
    path = Path(request.config)
    if request.config == "-":
        return _source_of(
            decode(request.stdin, label="standard input"), label="standard input", path=None, beside=beside
        )
    if len(request.config) > _LONGEST_NAME or not _exists(path):
        text = decode_base64(request.config)
        if text is not None:
            return _source_of(text, label="the base64 argument", path=None, beside=beside)
    return _source_of(_read_file(path), label=str(path), path=path, beside=beside)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> str:
    name = str(path)[:200]
    what = "a DeepSpeed configuration is read from it"
    try:
        if path.is_dir():
            raise InputError(f"{name!r} is a folder", why=what, fix="give the path of the configuration file")
        if path.exists() and not path.is_file():
            raise InputError(f"{name!r} is not a regular file", why="it is read whole", fix="use - for standard input")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            f"there is no file {name!r}", why=what, fix="give the path of a DeepSpeed configuration (or its base64)"
        ) from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(f"{name!r} cannot be read: {reason}", why=what, fix="check the path and rights") from None
    return decode(content, label=name)


def _source_of(text: str, *, label: str, path: Path | None, beside: AccelerateFile | None) -> _Source:
    """A DeepSpeed file, or accelerate's own in its place (with the DeepSpeed file that it names, if it is there)."""
    document = read_document(text)
    is_yaml = path is not None and path.suffix in _YAML_SUFFIXES and not text.lstrip().startswith("{")
    if not is_yaml and not looks_like_accelerate(document.value):
        return _Source(document=document, label=label, path=path, accelerate=beside)
    file = read_accelerate(text, label=label)
    if not looks_like_accelerate(file.value):
        raise InputError(
            f"{label} is neither accelerate's file nor a DeepSpeed configuration",
            why="of YAML files accelerate's own are read; DeepSpeed reads JSON",
            fix="give a JSON file, or the file that `accelerate config` wrote",
        )
    named = accelerate_block(file.value).get("deepspeed_config_file")
    if isinstance(named, str) and named not in ("", "none") and _exists(Path(named)):
        inner = read_document(_read_file(Path(named)))
        return _Source(document=inner, label=named, path=Path(named), accelerate=file)
    return _Source(document=as_deepspeed(file), label=label, path=path, accelerate=file, from_accelerate=True)


def _read_accelerate_file(path: Path) -> AccelerateFile:
    return read_accelerate(read_text(path, what="file of accelerate"), label=str(path))


def _context(source: _Source, request: CheckRequest) -> ConfigContext:
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
    if len(given) < _LONGEST_NAME and "\n" not in given and not given.lstrip().startswith(("-", "{")):
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
    path = path / "config.json" if _exists(path) and path.is_dir() else path
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


def _target(source: _Source, request: CheckRequest) -> Path:
    if source.from_accelerate:
        raise InputError(
            f"{source.label} is accelerate's own file, which is not rewritten",
            why="--fix writes DeepSpeed configurations",
            fix="mend it by the findings, or move its settings into a DeepSpeed file",
        )
    target = request.out_path or source.path
    if target is None:
        raise InputError(
            f"{source.label} cannot be written back",
            why="the configuration did not come from a file",
            fix="say where with --out FILE",
        )
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a folder", why="the corrected file is written to it", fix="name a file")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {str(target.parent)!r}", why="--out names a file in it", fix="create it")
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _answer(result: LintResult, document: Document, *, source: _Source, context: ConfigContext) -> CheckResult:
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


def _shown(findings: Iterable[Finding], document: Document, source: _Source) -> tuple[CheckedFinding, ...]:
    return tuple(_checked(finding, document, source) for finding in findings)


def _checked(finding: Finding, document: Document, source: _Source) -> CheckedFinding:
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
