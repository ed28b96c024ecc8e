"""A plain training script around a Hugging Face model, as DeepSpeed's own autotuner needs one.

Started by `bench_autotuner deepspeed` through the deepspeed launcher; not part of the product. Nothing of the planner
is used here, so that the other side runs as its own users would run it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-config", type=Path, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--per-device-train-batch-size", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()
    engine = _engine(options)
    times_s, losses = _train(engine, options)
    if options.report is not None:
        free, total = torch.cuda.mem_get_info()
        report = {
            "step_times_s": times_s,
            "losses": losses,
            "device_used_bytes": total - free,
            "usable_bytes": total,
            "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        }
        options.report.write_text(json.dumps(report))


def _engine(options: argparse.Namespace) -> Any:
    settings = json.loads(options.model_config.read_text())
    config = transformers.CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    config.use_cache = False
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(torch.bfloat16)
    engine, *_rest = deepspeed.initialize(args=options, model=model, model_parameters=list(model.parameters()))
    return engine


def _train(engine: Any, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    generator = torch.Generator().manual_seed(1)
    times_s, losses = [], []
    vocabulary = engine.module.config.vocab_size
    for _ in range(options.steps):
        began_s = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            shape = (engine.train_micro_batch_size_per_gpu(), options.seq_len)
            tokens = torch.randint(vocabulary, shape, generator=generator).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        losses.append(float(loss))  # waits for the device
        times_s.append(time.perf_counter() - began_s)
    return times_s, losses


if __name__ == "__main__":
    main()
