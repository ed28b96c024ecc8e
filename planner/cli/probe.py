"""`planner probe`: this machine in words, what is wrong with it, and its cluster file.

A Typer verb's parameters are its flags, however many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.app.probe_request import ProbeRequest, ProbeResult
from planner.cli.probe_view import probe_view
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.errors import InputError
from planner.spec.codec import to_plain

_GIB = 1 << 30


def probe(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Nodes like this one.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the cluster file here.")] = None,
    stress: Annotated[
        bool, typer.Option("--stress", help="Raise a batch until memory ends, and report the real capacity.")
    ] = False,
    stress_memory_gib: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="GIB", help="With --stress: go no higher (the file keeps what is free)."),
    ] = None,
    measure_links: Annotated[
        bool | None,
        typer.Option(
            "--measure-links/--no-measure-links",
            help="Time all-reduces over the devices. Not given: where there are several GPUs.",
        ),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Describe this machine as a cluster file, and say what is wrong with it for training.

    A job reads the file with `cluster: {file: FILE}`. With --quiet only the file is printed.
    """
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        if stress_memory_gib is not None and not stress:
            raise InputError(
                "--stress-memory-gib has no effect without --stress", why="it limits the staircase", fix="add --stress"
            )
        request = ProbeRequest(
            nodes=nodes,
            out_path=out,
            stress=stress,
            stress_memory_bytes=int((stress_memory_gib or 0) * _GIB),
            measure_links=measure_links,
        )
        with session.progress() as console:
            result = session.use_cases.probe_machine(request, console=console)
        session.print_json(probe_document(result))
        session.print(*probe_view(result))
        session.print_essential(str(result.written) if result.written else result.cluster_file.rstrip("\n"))


def probe_document(result: ProbeResult) -> dict[str, Any]:
    """The result as `--json` prints it."""
    machine = to_plain(result.report)
    unseen = machine.pop("unseen")
    return {
        "machine": machine,
        "findings": [to_plain(finding) for finding in result.findings],
        "unseen": unseen,
        "cluster_file": result.cluster_file or None,
        "written": str(result.written) if result.written else None,
    }
