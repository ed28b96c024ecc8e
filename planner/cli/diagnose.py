"""`planner diagnose`: logs of a failed run to its cause, with evidence and ranked fixes.

A Typer verb's parameters are its flags, however many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.app.diagnose_request import DiagnoseRequest
from planner.cli.diagnose_view import diagnosis_verdict, diagnosis_view
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.errors import InputError


def diagnose(
    context: typer.Context,
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Log files, a folder of rank logs, memory snapshots, - for stdin."),
    ],
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN_DIR", help="The plan that was run: prices the fixes.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The run's DeepSpeed config.")] = None,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A config.json or a catalog name: prices the fixes.")
    ] = "",
    gpu: Annotated[str, typer.Option(metavar="GPU", help="A catalog name: `planner list gpus`.")] = "",
    seq_len: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens of one sequence.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks (GPUs) in all.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, metavar="N", help="GPUs of one node; default 8.")] = None,
    activation_checkpointing: Annotated[
        str, typer.Option(metavar="KIND", help="What the run used: none, selective, full or layers:k.")
    ] = "",
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="What you know of the run: 'fits from scratch, fails on resume'.")
    ] = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the best fix into --config, or as a plan folder beside --plan.")
    ] = False,
    fix: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --apply: write this fix.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="With --apply: write there, not in place.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Name the cause of an out-of-memory or launch failure from its logs, with evidence, and rank what helps."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        _refuse_without_effect(apply=apply, fix=fix, out=out)
        request = DiagnoseRequest(
            paths=tuple(logs),
            plan_dir=plan,
            config=config,
            model=model,
            gpu=gpu,
            seq_len=seq_len or 0,
            world_size=world_size or 0,
            gpus_per_node=gpus_per_node or 0,
            activation_checkpointing=activation_checkpointing,
            note=note,
            apply=apply,
            fix_number=fix or 0,
            out_path=out,
        )
        result = session.use_cases.diagnose_logs(request)
        session.print_json(result.document)
        session.print(*diagnosis_view(result))
        session.print_essential(diagnosis_verdict(result.document))


def _refuse_without_effect(*, apply: bool, fix: int | None, out: Path | None) -> None:
    for flag, value in (("--fix", fix), ("--out", out)):
        if value is not None and not apply:
            raise InputError(f"{flag} has no effect without --apply", why="only --apply writes", fix="add --apply")
