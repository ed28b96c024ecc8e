"""`planner check`: a DeepSpeed configuration linted in its context."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from planner.app.check_request import CheckedFinding, CheckRequest, CheckResult, ConfigReader
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.errors import InputError
from planner.report.units import one_line, plural

_MOST_STDIN_BYTES = (1 << 20) + 1  # one more than is read of a file, so that too much is seen as too much
_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_LONGEST_LINE = 200


Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A DeepSpeed configuration: a file, -, or its base64; or accelerate's.")
]
World = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks (GPUs) in all.")]
Tensor = Annotated[int, typer.Option(min=1, metavar="N", help="Of the script's mpu.")]
Pipeline = Annotated[int, typer.Option(min=1, metavar="N", help="Stages of PipelineModule.")]
Sequence = Annotated[int, typer.Option(min=1, metavar="N", help="Ulysses ranks.")]
Reader = Annotated[
    ConfigReader | None,
    typer.Option(help='Who reads the file. Not given: Hugging Face for a file with "auto", else DeepSpeed.'),
]
Release = Annotated[
    str, typer.Option(metavar="X.Y.Z", help="From 0.14 on. Not given: all releases that plans are made for.")
]
TrainerArgs = Annotated[
    str, typer.Option(metavar="FILE|ARGS", help="The Hugging Face Trainer's arguments, to hold against the file.")
]
Accelerate = Annotated[Path | None, typer.Option(metavar="FILE", help="accelerate's file, to hold against it.")]
ClientOptimizer = Annotated[
    str, typer.Option(metavar="CLASS", help="The optimizer that the script passes itself; none: surely none.")
]
Model = Annotated[str, typer.Option(metavar="MODEL", help="A model's config.json, or a catalog name.")]
Gpu = Annotated[str, typer.Option(metavar="GPU", help="A catalog name: its memory and its precisions count.")]
GpuMemory = Annotated[float, typer.Option(min=0, metavar="GIB", help="A GPU's memory, for others.")]
NativeMoe = Annotated[bool, typer.Option("--native-moe", help="The model has DeepSpeed's own MoE layers.")]
Fix = Annotated[bool, typer.Option("--fix", help="Write the corrected file, whole or not at all; comments are lost.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="With --fix: write it here, not in place.")]


def check(
    context: typer.Context,
    config: Config,
    world_size: World = None,
    tensor_parallel_size: Tensor = 1,
    pipeline_parallel_size: Pipeline = 1,
    sequence_parallel_size: Sequence = 1,
    consumer: Reader = None,
    deepspeed_version: Release = "",
    trainer_args: TrainerArgs = "",
    accelerate_config: Accelerate = None,
    client_optimizer: ClientOptimizer = "",
    model: Model = "",
    gpu: Gpu = "",
    gpu_memory_gib: GpuMemory = 0.0,
    native_moe: NativeMoe = False,
    fix: Fix = False,
    out: Out = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Lint an existing DeepSpeed configuration. Exit code 2 when DeepSpeed would refuse it."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        if out is not None and not fix:
            raise InputError("--out has no effect without --fix", why="only --fix writes a file", fix="add --fix")
        result = session.use_cases.check_config(_request(context.params))
        session.print_json(check_document(result))
        session.print(*_view(result))
        session.print_essential(_verdict(result))
        if not result.ok:
            raise typer.Exit(InputError.exit_code)


def _request(flags: Mapping[str, Any]) -> CheckRequest:
    """The flags as they were parsed, under the names that a request gives them."""
    renamed = {"fix": "write", "out": "out_path"}
    given = {renamed.get(name, name): value for name, value in flags.items() if name not in ("as_json", "quiet")}
    stdin = sys.stdin.buffer.read(_MOST_STDIN_BYTES) if given["config"] == "-" else b""
    return CheckRequest(**{**given, "world_size": given["world_size"] or 0, "stdin": stdin})


def check_document(result: CheckResult) -> dict[str, Any]:
    """The result as `--json` prints it."""
    document: dict[str, Any] = {
        "ok": result.ok,
        "findings": [_finding(finding) for finding in result.findings],
        "notes": [_finding(note) for note in result.notes],
        "consumer": result.consumer.value,
        "deepspeed_versions": list(result.releases),
        "batch": dict(result.batch) or None,
        "data_parallel_size": result.data_parallel_size or None,
        "plan": str(result.plan) if result.plan is not None else None,
    }
    if result.mended or result.written is not None:
        document["fixed"] = [{**_finding(finding), "changes": list(finding.changes)} for finding in result.mended]
        document["written"] = str(result.written) if result.written is not None else None
        document["comments_lost"] = result.lost_comments
    return document


def _finding(finding: CheckedFinding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "file": finding.file,
        "key": finding.key,
        "line": finding.line,
        "message": finding.message,
        "why": finding.why,
        "fix": finding.fix,
        "patch": dict(finding.patch),
    }


def _view(result: CheckResult) -> Iterator[Text]:
    for finding in result.mended:
        changes = "; ".join(finding.changes) or f"{finding.key}: {finding.message}"
        yield Text.assemble(("fixed: ", "bold green"), one_line(changes), (f"  [{finding.code}]", "dim"))
    if result.written is not None:
        yield Text(
            f"wrote {result.written}" + (", without the comments of the old one" if result.lost_comments else "")
        )
    for finding in result.findings:
        yield from _finding_view(finding)
    undecided = [finding for finding in result.findings if finding.severity in ("error", "warning")]
    if undecided and (result.mended or result.written is not None):
        keys = ", ".join(dict.fromkeys(finding.key for finding in undecided))
        yield Text(f"left to you, since --fix takes no decisions: {one_line(keys)}", style="bold yellow")
    if result.notes:
        yield Text("left to others or to defaults:", style="dim")
    for note in result.notes:
        yield Text(f"  {note.key}: {one_line(note.message)}", style="dim")
    if result.plan is not None:
        yield Text(f"ranks, splits and release as {result.plan} says", style="dim")
    ranks = plural(result.data_parallel_size, "data-parallel rank")
    if result.batch:
        train, micro, accumulation = (value for _name, value in result.batch)
        yield Text(f"batch: {train} = micro-batch {micro} x accumulation {accumulation} x {ranks}")
    elif result.data_parallel_size:
        yield Text(f"the batch is split over {ranks}")
    yield Text(_verdict(result), style="bold green" if result.ok else "bold red")


def _finding_view(finding: CheckedFinding) -> Iterator[Text]:
    style = _STYLES[finding.severity]
    place = f"{finding.file}:{finding.line}: "
    yield Text.assemble(
        place, (f"{finding.severity}: ", style), one_line(finding.message), (f"  [{finding.code}]", "dim")
    )
    if len(finding.text.strip()) > 1:  # the brace that opens the file says nothing
        text = finding.text if len(finding.text) <= _LONGEST_LINE else finding.text[:_LONGEST_LINE] + "..."
        yield Text(f"  {finding.line:>4} | {one_line(text)}", style="dim")
    yield Text(f"  why: {one_line(finding.why)}")
    yield Text(f"  fix: {one_line(finding.fix)}")


def _verdict(result: CheckResult) -> str:
    severities = [finding.severity for finding in result.findings]
    counts = [plural(severities.count(name), name) for name in ("error", "warning") if name in severities]
    first, last = result.releases[0], result.releases[-1]
    releases = first if first == last else f"{first} to {last}"
    reader = "DeepSpeed" if result.consumer is ConfigReader.DEEPSPEED else "Hugging Face, then DeepSpeed"
    return f"{'ok' if result.ok else 'not ok'}: {', '.join(counts) or 'no fault'}; read by {reader} {releases}"
