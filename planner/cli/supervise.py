"""The verb `supervise`, which launch scripts begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.app.requests import SuperviseRequest
from planner.cli.session import JsonFlag, QuietFlag, run_verb


def supervise(
    context: typer.Context,
    plan_dir: Annotated[Path, typer.Argument(metavar="PLAN_DIR", help="A folder that `planner plan` wrote.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What starts all ranks of this node.")],
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes of the run; each has a supervisor.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, metavar="N", help="Which of them this is, from 0.")] = 0,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Run a plan's launch command; when it runs out of memory, start it again with the plan's next fallback."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        request = SuperviseRequest(
            plan_dir=plan_dir, command=tuple(command), nodes=nodes, node_rank=node_rank, on_stderr=as_json
        )
        exit_code = session.use_cases.supervise_run(request)
        session.print_json({"exit_code": exit_code, "plan_dir": str(plan_dir)})
    raise typer.Exit(exit_code)
