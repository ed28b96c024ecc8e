"""`planner estimate`: one configuration from flags, or many from rows.

The flags carry the names of a row's keys; what they mean, and what a row leaves out, is the use case's to say. A Typer
verb's parameters are its flags, however many.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.estimate_view import estimate_verdict, estimate_view
from planner.cli.session import JsonFlag, QuietFlag, Session, run_verb
from planner.errors import InputError
from planner.spec.kinds import Attention, OffloadDevice, OptimizerName, Precision, Runtime


class Switch(StrEnum):
    """A flag that takes its value in words, so that leaving it out can mean a default that depends on others."""

    TRUE = "true"
    FALSE = "false"


def _count(words: str) -> Any:
    return typer.Option(min=1, metavar="N", help=words)


_NOT_ROW_KEYS = frozenset({"rows_from", "as_json", "quiet"})


def estimate(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A config.json, a folder holding one, or a catalog name.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="A catalog name: `planner list gpus`.")] = None,
    nodes: Annotated[int | None, _count("Nodes of the cluster; default 1.")] = None,
    gpus_per_node: Annotated[int | None, _count("GPUs of one node; default 8.")] = None,
    seq_len: Annotated[int | None, _count("Tokens of one sequence.")] = None,
    micro_batch_size: Annotated[int | None, _count("Sequences of one forward pass of a rank.")] = None,
    gradient_accumulation_steps: Annotated[int | None, _count("Forward passes per optimizer step; default 1.")] = None,
    global_batch_size: Annotated[int | None, _count("Sequences per optimizer step, instead of accumulation.")] = None,
    zero_stage: Annotated[
        int | None, typer.Option(min=0, max=3, metavar="0-3", help="Default 0; fsdp 3, Megatron-Core 1.")
    ] = None,
    tensor_parallel_size: Annotated[int | None, _count("Default 1.")] = None,
    pipeline_parallel_size: Annotated[int | None, _count("Default 1.")] = None,
    sequence_parallel_size: Annotated[int | None, _count("Ulysses; default 1.")] = None,
    expert_parallel_size: Annotated[int | None, _count("Default 1.")] = None,
    virtual_pipeline_size: Annotated[int | None, _count("Model chunks of a pipeline stage; default 1.")] = None,
    tensor_sequence_parallel: Annotated[
        Switch | None, typer.Option(help="Split activations between tensor-parallel regions by sequence.")
    ] = None,
    activation_checkpointing: Annotated[
        str | None, typer.Option(metavar="KIND", help="none, selective, full or layers:k; default none.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="Default bf16.")] = None,
    attention: Annotated[Attention | None, typer.Option(help="Default sdpa.")] = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(help="Default adamw.")] = None,
    offload_optimizer: Annotated[
        OffloadDevice | None, typer.Option(help="Where optimizer states live; default none.")
    ] = None,
    offload_param: Annotated[OffloadDevice | None, typer.Option(help="Where parameters live; default none.")] = None,
    torch_compile: Annotated[bool | None, typer.Option("--torch-compile", help="The model runs compiled.")] = None,
    trainable_fraction: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, metavar="F", help="Share of the parameters that is trained.")
    ] = None,
    lora_rank: Annotated[int | None, _count("Train low-rank adapters of this rank only.")] = None,
    runtime: Annotated[Runtime | None, typer.Option(help="Whose runtime it is about; default deepspeed.")] = None,
    rows_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="ROWS.jsonl", help="Estimate every row of a file (- for standard input)."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Memory and time of one configuration, no GPU needed; or of many, one JSON result a line in their order."""
    row = _row_of(context)
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        if rows_from is not None:
            _refuse_flags_beside_rows(row)
            _estimate_rows(session, rows_from)
            return
        result = session.use_cases.estimate_one(row)
        session.print_json(result)
        session.print(*estimate_view(result, row))
        session.print_essential(estimate_verdict(result))


def _row_of(context: typer.Context) -> dict[str, Any]:
    """The flags that were given, as a row: plain values by their names with underscores."""
    given = {name: value for name, value in context.params.items() if value is not None and name not in _NOT_ROW_KEYS}
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Switch):
        return value is Switch.TRUE
    return value.value if isinstance(value, StrEnum) else value


def _refuse_flags_beside_rows(row: dict[str, Any]) -> None:
    if row:
        flag = "--" + next(iter(row)).replace("_", "-")
        raise InputError(
            f"{flag} has no effect beside --from",
            why="with --from every configuration comes from the file's rows",
            fix=f"leave {flag} out, or write {next(iter(row))!r} into the rows",
        )


def _estimate_rows(session: Session, path: Path) -> None:
    for result in session.use_cases.estimate_rows(_read_lines(path)):
        session.write_line(json.dumps(result, ensure_ascii=False, allow_nan=False))


def _read_lines(path: Path) -> Iterator[str]:
    """The lines one by one; what is not UTF-8 is replaced, so that it spoils its own row only."""
    if str(path) == "-":
        yield from sys.stdin
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            yield from stream
    except OSError as problem:
        raise InputError(
            f"cannot read {path}", why=problem.strerror or str(problem), fix="name a readable file, or - for stdin"
        ) from None
