"""Reads a config with DeepSpeed's own classes, as a rank of a given data-parallel world would: a child program.

    python -m planner.runtime.parse_config --config ds_config.json --data-parallel-size 64

Prints one JSON document for each config, a line each, on standard output, `{"ok": true, "train_batch_size": 512, …}` or
`{"ok": false, "error": "…"}`, and exits 0 either way; any other end is a crash. DeepSpeed's own talk goes to standard
error. Parsing alone does not prove that a config runs: the caller also checks rules and trains two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from planner.runtime.result_channel import result_channel

TIMED_OUT_EXIT = 124  # as coreutils' timeout


class _GridOfWorld:
    """Stands in for the mpu of a data-parallel world that is not here."""

    def __init__(self, data_parallel_size: int) -> None:
        self._data_parallel_size = data_parallel_size

    def get_data_parallel_world_size(self) -> int:
        return self._data_parallel_size


class _WorldOfOne:
    """Stands in for `torch.distributed`, which DeepSpeed's config asks for the rank before it asks the mpu."""

    @staticmethod
    def get_rank() -> int:
        return 0


def parse_config(path: Path, *, data_parallel_size: int) -> dict[str, Any]:
    """What DeepSpeed makes of the file, or why it refuses it. Imports DeepSpeed."""
    import deepspeed
    from deepspeed.runtime import config as module

    # Keep: without a process group the class falls back to a world of one, and any batch triple of a real world fails.
    module.dist = _WorldOfOne
    try:
        parsed = module.DeepSpeedConfig(str(path), mpu=_GridOfWorld(data_parallel_size))
    except Exception as problem:  # whatever DeepSpeed raises is its verdict: assertions, ValueError, pydantic's errors
        return {
            "ok": False,
            "error": f"{type(problem).__name__}: {problem}",
            "deepspeed_version": deepspeed.__version__,
        }
    return {
        "ok": True,
        "deepspeed_version": deepspeed.__version__,
        "train_batch_size": parsed.train_batch_size,
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "zero_stage": int(parsed.zero_optimization_stage),
        "gradient_clipping": parsed.gradient_clipping,
    }


def _end_after(seconds: float) -> None:
    """End the process when time is up, wherever it hangs: a compiler or a lock does not listen to exceptions."""
    timer = threading.Timer(seconds, os._exit, args=(TIMED_OUT_EXIT,))
    timer.daemon = True
    timer.start()


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and the config; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.parse_config", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, action="append", help="may be given several times")
    parser.add_argument("--data-parallel-size", required=True, type=int, action="append", help="one for all, or each")
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    options = parser.parse_args(arguments)
    sizes = options.data_parallel_size
    if len(sizes) not in (1, len(options.config)):
        parser.error("give --data-parallel-size once, or as often as --config")
    _end_after(options.time_limit_s)
    with result_channel() as channel:
        for config, size in zip(options.config, sizes * len(options.config) if len(sizes) == 1 else sizes):
            result = parse_config(config, data_parallel_size=size)
            os.write(channel, (json.dumps(result) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
