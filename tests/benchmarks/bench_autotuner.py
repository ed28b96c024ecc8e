"""The planner and DeepSpeed's own autotuner on the same machine, each by a command of its own, then side by side.

    python -m tests.benchmarks.bench_autotuner ours --model llama1b3 --out OUT        about 4 minutes on one H200
    python -m tests.benchmarks.bench_autotuner deepspeed --model llama1b3 --out OUT   about 9 minutes on one H200
    python -m tests.benchmarks.bench_autotuner compare [--kept tests/data/autotuner]

`ours` plans from a job file (timed from the command to the plan folder), then runs the plan's own start script for 34
steps; the first four are left out. `deepspeed` runs `deepspeed --autotuning tune` on a plain script, then its best
setting for as many steps, which may run out of memory. Each leaves one JSON file in OUT, to be copied to
tests/data/autotuner. Models: llama1b3 (2,048 tokens) and gpt2-xl (1,024 tokens).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "data" / "h200" / "models"
KEPT = ROOT / "tests" / "data" / "autotuner"
SEQ_LEN = {"llama1b3": 2048, "gpt2-xl": 1024}
GLOBAL_BATCH_SIZE = 24  # next to the 23 that the autotuner chose for itself
MEASURED_STEPS, LEFT_OUT_STEPS = 30, 4
PLAN_SECONDS = {"llama1b3": "120s", "gpt2-xl": "120s"}
_MAD = 1.4826  # a median absolute deviation times this is a standard deviation
# The autotuner calls ssh and pdsh even for one machine, to find its address and to end what is left of an experiment.
_SHIMS = {
    "ssh": '#!/bin/sh\ncase "$*" in *"hostname -I") echo 127.0.0.1 ;; *) hostname ;; esac\n',
    "pdsh": "#!/bin/sh\nexit 0\n",
}
_TABULATE = "def tabulate(rows, **how):\n    return '\\n'.join(map(str, rows))\n"


def plan_ours(model: str, out: Path) -> dict[str, Any]:
    """Plan, then run the plan's start script; what both showed."""
    work = Path(tempfile.mkdtemp(prefix="bench-ours-"))
    job = work / "job.yaml"
    job.write_text(yaml.safe_dump(job_of(model)))
    folder = work / "plan"
    began_s = time.monotonic()
    _run([sys.executable, "-m", "planner", "plan", str(job), "--out", str(folder)], log=out / f"ours-{model}.log")
    seconds = time.monotonic() - began_s
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    report = work / "report.json"
    steps = str(MEASURED_STEPS + LEFT_OUT_STEPS)
    start = ["bash", str(folder / "launch.sh"), "--steps", steps, "--no-checkpoint", "--report", str(report)]
    _run(start, log=out / f"ours-{model}-run.log", environment={"PYTHON": sys.executable, "MESHPLAN_SUPERVISE": "off"})
    (rank,) = json.loads(report.read_text())["ranks"]
    trials = (folder / "trials.jsonl").read_text().splitlines()
    shutil.copy(folder / "trials.jsonl", out / f"ours-{model}-trials.jsonl")
    times_s = rank["step_times_s"][LEFT_OUT_STEPS - 1 :]  # the report has left the first one out already
    return {
        "side": "ours",
        "model": model,
        "seq_len": SEQ_LEN[model],
        "seconds": seconds,
        "num_trials": len(trials),
        "setting": plan["key"],
        "tokens_per_s": GLOBAL_BATCH_SIZE * SEQ_LEN[model] / median(times_s),
        "step_times_s": times_s,
        "device_used_bytes": max(rank["device_used_bytes"], rank["peak_reserved_bytes"]),
        "usable_bytes": plan["promise"]["usable_bytes"],
        "losses": rank["losses"],
        "note": f"{GLOBAL_BATCH_SIZE} sequences a step",
    }


def job_of(model: str) -> dict[str, Any]:
    """The job file of our side: the layouts of one GPU; the local settings are left to the planner."""
    return {
        "model": {"config": str(CONFIGS / f"{model}.json")},
        "training": {
            "seq_len": SEQ_LEN[model],
            "global_batch_size": GLOBAL_BATCH_SIZE,
            "optimizer": {"name": "adamw", "lr": 3.0e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
            "gradient_clipping": 1.0,
        },
        "cluster": {"gpu": "auto", "nodes": 1, "gpus_per_node": 1},
        "search": {
            "zero_stage": [0, 1, 2, 3],
            "micro_batch_size": [4, 6, 8, 12, 24],
            "activation_checkpointing": ["none", "selective", "full"],
            "precision": "bf16",
        },
        "trials": {"mode": "real", "max_trials": 18, "time_budget": PLAN_SECONDS[model], "steps": 3, "timeout": "60s"},
    }


def tune_deepspeed(model: str, out: Path) -> dict[str, Any]:
    """Run DeepSpeed's autotuner, then its best setting; what both showed."""
    work = Path(tempfile.mkdtemp(prefix="bench-deepspeed-"))
    environment = {"PATH": f"{_shims(work)}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{work / 'bin'}"}
    if importlib.util.find_spec("tabulate") is None:  # the autotuner prints its results with it, and does no more
        (work / "bin" / "tabulate.py").write_text(_TABULATE)
    (work / "hostfile").write_text("localhost slots=1\n")
    (work / "ds_config.json").write_text(json.dumps(autotuner_config()))
    script = [str(Path(__file__).parent / "autotuner_train.py"), "--model-config", str(CONFIGS / f"{model}.json")]
    script += ["--seq-len", str(SEQ_LEN[model]), "--per-device-train-batch-size", "1"]
    launcher = ["deepspeed", "--hostfile", "hostfile", "--num_nodes", "1", "--num_gpus", "1"]
    began_s = time.monotonic()
    tune = [*launcher, "--autotuning", "tune", *script, "--deepspeed_config", "ds_config.json"]
    _run(tune, log=out / f"deepspeed-{model}.log", environment=environment, folder=work)
    seconds = time.monotonic() - began_s
    results = work / "autotuning_results"
    best = json.loads((results / "ds_config_optimal.json").read_text())
    report = work / "report.json"
    (work / "best.json").write_text(json.dumps({key: value for key, value in best.items() if key != "autotuning"}))
    steps = ["--steps", str(MEASURED_STEPS + LEFT_OUT_STEPS), "--report", str(report)]
    run = [*launcher, *script, *steps, "--deepspeed_config", "best.json"]
    ran = _run(run, log=out / f"deepspeed-{model}-run.log", environment=environment, folder=work, must=False)
    found = json.loads(report.read_text()) if report.exists() else {}
    times_s = found.get("step_times_s", [])[LEFT_OUT_STEPS:]
    tokens = best.get("train_micro_batch_size_per_gpu", 0) * best.get("gradient_accumulation_steps", 1) * SEQ_LEN[model]
    return {
        "side": "deepspeed",
        "model": model,
        "seq_len": SEQ_LEN[model],
        "seconds": seconds,
        "num_trials": len(list(results.glob("**/exp.json"))),
        "setting": f"zero_stage {best.get('zero_optimization', {}).get('stage')}, "
        f"train_micro_batch_size_per_gpu {best.get('train_micro_batch_size_per_gpu')}",
        "tokens_per_s": tokens / median(times_s) if times_s else 0.0,
        "step_times_s": times_s,
        "device_used_bytes": found.get("device_used_bytes", 0),
        "usable_bytes": found.get("usable_bytes", 0),
        "losses": found.get("losses", []),
        "note": "" if ran else "run again, the setting did not run to its end",
    }


def autotuner_config() -> dict[str, Any]:
    """What a user gives the autotuner: everything that it does not tune, and its fast mode."""
    return {
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3.0e-4, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True, "fused": True},
        },
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": [0, 1, 2, 3]},
        "steps_per_print": 1_000_000,
        "autotuning": {
            "enabled": True,
            "fast": True,
            "results_dir": "autotuning_results",
            "exps_dir": "autotuning_exps",
            "arg_mappings": {"train_micro_batch_size_per_gpu": "--per-device-train-batch-size"},
        },
    }


def _shims(work: Path) -> Path:
    folder = work / "bin"
    folder.mkdir()
    for name, text in _SHIMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def _run(
    command: list[str],
    *,
    log: Path,
    environment: dict[str, str] | None = None,
    folder: Path = ROOT,
    must: bool = True,
) -> bool:
    """Run to the end with its output in `log`; SystemExit when it fails and `must` not."""
    with log.open("wb") as out:
        end = subprocess.run(command, cwd=folder, env={**os.environ, **(environment or {})}, stdout=out, stderr=out)
    if end.returncode and must:
        raise SystemExit(f"exit code {end.returncode}: {' '.join(command)}; see {log}")
    return end.returncode == 0


def side_by_side(kept: list[dict[str, Any]]) -> list[str]:
    """The lines of the table; a model's rows stand together, and ours says how many times the other it is."""
    lines = [f"{'model':10}{'side':11}{'tokens/s':>10}{'spread':>8}{'steps':>6}{'took':>8}{'headroom':>10}  setting"]
    for one in sorted(kept, key=lambda item: (item["model"], item["side"] != "ours")):
        spread, headroom = _spread(one["step_times_s"]), _headroom(one)
        lines.append(
            f"{one['model']:10}{one['side']:11}{one['tokens_per_s']:10,.0f}{spread:>8}{len(one['step_times_s']):6}"
            f"{one['seconds']:7.0f}s{headroom:>10}  {one['setting']}{'; ' + one['note'] if one['note'] else ''}"
        )
    by_side = {(one["model"], one["side"]): one for one in kept}
    for model in sorted({one["model"] for one in kept}):
        ours, other = by_side.get((model, "ours")), by_side.get((model, "deepspeed"))
        if ours and other and other["tokens_per_s"]:
            faster, sooner = ours["tokens_per_s"] / other["tokens_per_s"], ours["seconds"] / other["seconds"]
            lines.append(f"{model}: {faster:.2f} times the tokens/s in {sooner:.2f} of the time (goal 1.12 in 0.33)")
    return lines


def _spread(times_s: list[float]) -> str:
    if not times_s:
        return "-"
    middle = median(times_s)
    return f"{_MAD * median(abs(value - middle) for value in times_s) / middle:.1%}"


def _headroom(one: dict[str, Any]) -> str:
    return f"{1 - one['device_used_bytes'] / one['usable_bytes']:.1%}" if one["usable_bytes"] else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("side", choices=("ours", "deepspeed", "compare"))
    parser.add_argument("--model", choices=tuple(SEQ_LEN), default="llama1b3")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--kept", type=Path, default=KEPT)
    options = parser.parse_args()
    if options.side == "compare":
        kept = [json.loads(path.read_text()) for path in sorted(options.kept.glob("*.json"))]
        print("\n".join(side_by_side(kept)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    found = (plan_ours if options.side == "ours" else tune_deepspeed)(options.model, options.out)
    path = options.out / f"{options.side}-{options.model}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print("\n".join(side_by_side([found])))


if __name__ == "__main__":
    main()
