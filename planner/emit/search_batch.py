"""The batch script that runs a whole search inside one Slurm allocation, submitted from a node without GPUs."""

from __future__ import annotations

import shlex

from planner.emit.shell import fill_skeleton
from planner.emit.slurm import CPU_OPTIONS, GPU_OPTIONS, check_option
from planner.spec._record import record


@record
class SearchBatch:
    """`slurm`: the job's options of sbatch. `gpus`: of the one node that the trials run on, 0 for a job on CPUs."""

    name: str
    slurm: tuple[tuple[str, str], ...]
    gpus: int
    command: tuple[str, ...]
    folder: str  # where the planner was called
    log: str
    answer: str


def render_search_batch(batch: SearchBatch) -> str:
    """The script. Raises InputError for an option that Slurm would misread."""
    chosen = {name.replace("_", "-"): value for name, value in batch.slurm}
    for name, value in chosen.items():
        check_option(name, value)
    lines = {"job-name": f"search-{batch.name}"[:60], "nodes": "1", "ntasks": "1", "output": batch.log}
    if batch.gpus and not GPU_OPTIONS & chosen.keys():
        lines["gpus-per-node"] = str(batch.gpus)
    if not CPU_OPTIONS & chosen.keys():
        lines["exclusive"] = ""
    lines |= {name: value for name, value in chosen.items() if name != "output"}
    directives = "\n".join(
        f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") for name, value in lines.items()
    )
    return fill_skeleton(
        "search.sbatch",
        directives=directives,
        folder=shlex.quote(batch.folder),
        command=shlex.join(batch.command),
        answer=shlex.quote(batch.answer),
    )
