"""Runs the user's own training script in this process, as its launcher would have started it.

Owns arguments, folder, environment and what it means that the script came back. Leaves watching its steps to
`script_watch`; the watch ends the process once it has seen enough, so that coming back at all is too early.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

from planner.spec import ScriptCall
from planner.spec._record import record

_LOG_TAIL_BYTES = 2000


class ScriptProblem(Exception):
    """What the user's script did that no trial can be made of, in words that say how to mend it."""


@record
class Seat:
    """Who this process is among the ranks of one machine."""

    rank: int
    world_size: int
    master_port: int


def take_seat(seat: Seat) -> None:
    """The variables that torchrun and the deepspeed launcher give a rank."""
    os.environ.update(
        RANK=str(seat.rank),
        LOCAL_RANK=str(seat.rank),
        WORLD_SIZE=str(seat.world_size),
        LOCAL_WORLD_SIZE=str(seat.world_size),
        GROUP_RANK="0",
        NODE_RANK="0",
        GROUP_WORLD_SIZE="1",
        CROSS_RANK="0",
        CROSS_SIZE="1",
        LOCAL_SIZE=str(seat.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(seat.master_port),
    )


def run_script(call: ScriptCall, seat: Seat) -> None:
    """Run it as `__main__`. Whatever it raises passes through, SystemExit included."""
    os.chdir(call.folder)
    if call.uses_accelerate:
        os.environ.update(_accelerate_environment(call, seat))
    words = list(call.words)
    if call.passes_local_rank:
        words.insert(1, f"--local_rank={seat.rank}")
    sys.argv = words
    if call.is_module:
        sys.path[0:0] = [str(Path.cwd())]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    script = Path(words[0])
    if not script.is_file():
        raise ScriptProblem(f"there is no script {words[0]} in {call.folder} (launch.folder says where it starts)")
    sys.path[0:0] = [str(script.resolve().parent)]
    runpy.run_path(str(script), run_name="__main__")


def _accelerate_environment(call: ScriptCall, seat: Seat) -> dict[str, str]:
    """What `accelerate launch` would set for the ranks, computed by accelerate itself from the same options."""
    launch = importlib.import_module("accelerate.commands.launch")
    environment = importlib.import_module("accelerate.utils.launch")
    before = dict(os.environ)
    options = [*call.accelerate_words, "--num_processes", str(seat.world_size), "--num_machines", "1"]
    # Keep: another port than the ranks' own, which rank 0 may already listen on.
    options += ["--use_deepspeed", "--main_process_port", "0"]
    module = ["--module"] if call.is_module else []
    parsed = launch.launch_command_parser().parse_args([*options, *module, *call.words])
    parsed, defaults, from_file = launch._validate_launch_command(parsed)
    fields = list(defaults.deepspeed_config.keys()) if defaults else []
    parsed.deepspeed_fields_from_accelerate_config = ",".join(fields + (["mixed_precision"] if from_file else []))
    _command, wanted = environment.prepare_deepspeed_cmd_env(parsed)
    return {name: value for name, value in wanted.items() if before.get(name) != value}


def explain_return(stop: SystemExit | None, *, started: bool, steps_done: int, steps_wanted: int, log: Path) -> str:
    """Why a script that came back by itself gave no measurement. `started`: it had called deepspeed.initialize."""
    code = 0 if stop is None else stop.code
    how = f"ended by itself with exit code {code if isinstance(code, int) else 1}" if code else "ended by itself"
    words = _last_words(log) if code else ""
    said = f"; the last it printed: {words}" if words else ""
    if not started:
        return (
            f"the script {how} and never called deepspeed.initialize{said}: a trial measures the engine's steps, so "
            "the script has to train with DeepSpeed when it is given the config"
        )
    return (
        f"the script {how} after {steps_done} of {steps_wanted} optimizer steps{said}: let it train for at least "
        f"{steps_wanted} (more data, or a larger number of steps on its command line), or lower trials.steps"
    )


def explain_mismatch(said: str) -> str:
    """Of a Trainer whose arguments contradict the config: which do, and how they are brought to follow it."""
    lines = [line.strip("- ").strip() for line in said.splitlines() if line.startswith("- ds ")]
    return (
        f"the Trainer's arguments do not agree with the plan's config: {'; '.join(lines) or said}. Arguments that "
        "stand in launch.command follow the plan (--per_device_train_batch_size, --gradient_accumulation_steps, "
        "--bf16, --fp16), so write them there instead of in the script; for the rest set search.precision or the job's "
        "training section, to what the script does"
    )


def _last_words(log: Path) -> str:
    if not log.is_file():
        return ""
    text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
