"""The reference trainer's command line: one process per rank, started by torchrun, the deepspeed launcher or srun.

    python -m planner.runtime.train --task task.json [--deepspeed-config ds_config.json] [--steps N] [--resume]
                                    [--no-checkpoint] [--report report.json] [--export FOLDER] [--supervised FOLDER]
                                    [--profile FOLDER]

Owns arguments, the launcher's environment and how an ending is told. Leaves the training to `trainer`. Nothing heavy is
imported before the task is read, because DeepSpeed picks its accelerator when it is imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from planner.errors import InputError, Interrupted, PlannerError
from planner.runtime.allocator import settle_allocator
from planner.runtime.refusing import refuse
from planner.runtime.whole_file import write_whole
from planner.spec import TrialTask
from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain, to_plain

CALLER_FOLDER = "MESHPLAN_CALLED_FROM"  # set by start scripts


@record
class LaunchedRank:
    """Who this process is, as its launcher says."""

    rank: int
    world_size: int
    local_rank: int


def launched_rank(environment: dict[str, str], *, local_rank: int | None) -> LaunchedRank:
    """Read torchrun's and deepspeed's variables, else Slurm's; alone in the world when there are neither.

    `local_rank`: from the command line, where the deepspeed launcher also puts it.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "RANK" not in environment and "SLURM_PROCID" in environment:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    rank, world_size = int(environment.get(names[0], "0")), int(environment.get(names[1], "1"))
    fallback = rank if local_rank is None else local_rank
    return LaunchedRank(rank=rank, world_size=world_size, local_rank=int(environment.get(names[2], str(fallback))))


def load_task(path: Path, *, ds_config_path: Path | None) -> TrialTask:
    """Read a task file, taking its DeepSpeed config from a file of its own where the task leaves it out.

    Raises InputError, naming the file, when either cannot be read.
    """
    try:
        task = from_plain(TrialTask, json.loads(path.read_text(encoding="utf-8")))
        if ds_config_path is None:
            return task
        text = ds_config_path.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, json.JSONDecodeError, DecodeError) as problem:
        raise InputError(
            f"the trainer's files cannot be read: {problem}",
            why=f"--task {path} and --deepspeed-config {ds_config_path} are written by the planner, as JSON",
            fix="write them again with `planner emit PLAN_DIR`",
        ) from problem
    return dataclasses.replace(task, ds_config_json=text)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.train", description="Train as a plan says.")
    parser.add_argument("--task", type=Path, required=True, help="task.json of the plan folder")
    parser.add_argument("--deepspeed-config", type=Path, help="ds_config.json of the plan folder")
    parser.add_argument(
        "--steps",
        type=_positive,
        help="optimizer steps of this run: with --resume so many MORE, even beyond the job's end, where it stops else",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    parser.add_argument("--no-checkpoint", action="store_true", help="write no checkpoints, whatever the job says")
    parser.add_argument("--report", type=Path, help="write what was measured, as JSON, at the end")
    parser.add_argument("--export", type=Path, help="write the model as Hugging Face safetensors here, at the end")
    parser.add_argument("--profile", type=Path, help="run two more steps at the end and write a profile of them here")
    parser.add_argument("--supervised", type=Path, help="set by the supervisor: where ranks leave word")
    parser.add_argument("--end-step", type=_positive, help="set by the supervisor: the step to end after")
    parser.add_argument("--local_rank", "--local-rank", type=int, help="set by the deepspeed launcher")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    """A whole number from 1; argparse turns the ValueError into exit code 2."""
    number = int(text)
    if number < 1:
        raise ValueError(f"{number} is less than 1")
    return number


def from_caller(path: Path | None) -> Path | None:
    """What is named on the command line is found from the folder that the start script was called in, not from the
    plan's, where the trainer runs."""
    return None if path is None else Path(os.environ.get(CALLER_FOLDER, "."), path).absolute()


def main(arguments: list[str]) -> int:
    """Train; the exit code says how it ended (2: the input is wrong)."""
    options = parse_arguments(arguments)
    who = launched_rank(dict(os.environ), local_rank=options.local_rank)
    try:
        task = load_task(options.task, ds_config_path=options.deepspeed_config)
        os.environ.setdefault("DS_ACCELERATOR", str(task.device))
        settle_allocator(task)
        from planner.runtime.trainer import Run, run_training

        report = run_training(
            Run(
                task=task,
                resume=options.resume,
                steps=options.steps,
                checkpoints=not options.no_checkpoint,
                supervised=options.supervised,
                export_dir=from_caller(options.export),
                profile_dir=from_caller(options.profile),
                end_step=options.end_step,
            ),
            rank=who.rank,
            world_size=who.world_size,
            local_rank=who.local_rank,
        )
    except Interrupted as stopped:
        if who.rank == 0:
            print(stopped, file=sys.stderr, flush=True)
        # Supervised, the ranks have ended as they were asked to: a launcher would report anything else as a failure.
        return 0 if options.supervised else stopped.exit_code
    except PlannerError as problem:
        return refuse(problem, folder=options.supervised, local_rank=who.local_rank)
    report_path = from_caller(options.report)
    if who.rank == 0 and report_path is not None:
        write_whole(report_path, json.dumps(to_plain(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
