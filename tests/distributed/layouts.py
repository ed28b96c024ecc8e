"""Runs training tasks on real processes for tests: `run_layouts` starts one child program that imports everything once
and forks the ranks of each task, so that a layout costs a second or two and not the ten of a cold start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.spec import (
    NO_TUNING,
    ActivationCheckpointing,
    Attention,
    BatchSplit,
    Candidate,
    DeviceKind,
    ModelFamily,
    ModelSpec,
    ParallelLayout,
    Precision,
    TrainingSpec,
    TrialTask,
    Tuning,
    partition_layers,
)
from planner.spec.codec import from_plain, to_plain

ROOT = Path(__file__).parents[2]

NUM_LAYERS = 4
SEQ_LEN = 16
GLOBAL_BATCH_SIZE = 8
EXPORTED = "exported"  # a checkpoint folder of this name also gets the model as safetensors, under `model`
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,  # large, so that a wrong gradient shows in the loss within a few steps
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 8},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [1],
    },
    "gemma": {**LLAMA, "model_type": "gemma", "head_dim": 8, "tie_word_embeddings": True},
    "phi3": {**LLAMA, "model_type": "phi3"},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": NUM_LAYERS,
        "n_head": 4,
        "vocab_size": 128,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
# Plain gradient descent shows a gradient that is wrong by a factor, which Adam hides; Adam shows states gone wrong.
SGD = {"type": "SGD", "params": {"lr": 2.0, "momentum": 0.5}}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}


def model_spec(name: str) -> ModelSpec:
    """One of `CONFIGS` as the record that the runtime reads."""
    config = CONFIGS[name]
    return ModelSpec(
        name=name,
        family=ModelFamily.DECODER,
        model_type=config["model_type"],
        config_json=json.dumps(config),
        num_layers=NUM_LAYERS,
        vocab_size=config["vocab_size"],
    )


def make_task(
    model: str,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    zero: int = 0,
    precision: str = "fp32",
    checkpointing: str = "none",
    attention: str = "sdpa",
    optimizer: dict[str, Any] = SGD,
    steps: int = 5,
    stage_layers: tuple[int, ...] | None = None,
    micro_batch_size: int = 2,
    checkpoint_dir: str = "",
    lora_rank: int = 0,
    clipping: float = 0.5,
    tuning: Tuning = NO_TUNING,
    zero_options: dict[str, Any] | None = None,
    other_options: dict[str, Any] | None = None,
) -> TrialTask:
    """A tiny task at one layout. The clipping binds at every step, so that the gradient norm matters; it also hides a
    gradient that is wrong by one factor throughout, so that some tests switch it off."""
    accumulation = GLOBAL_BATCH_SIZE // micro_batch_size // data
    ds_config = {
        "train_batch_size": GLOBAL_BATCH_SIZE,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clipping,
        "optimizer": optimizer,
        "zero_optimization": {
            "stage": zero,
            "reduce_bucket_size": 1_000_000,
            "allgather_bucket_size": 1_000_000,
            "stage3_param_persistence_threshold": 0,  # or parameters as small as these would not be partitioned
            **(zero_options or {}),
        },
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
        **(other_options or {}),
    }
    if precision != "fp32":
        ds_config[precision] = {"enabled": True}
    return TrialTask(
        model=model_spec(model),
        training=TrainingSpec(
            seq_len=SEQ_LEN,
            global_batch_size=GLOBAL_BATCH_SIZE,
            steps=5,
            warmup_steps=2,
            checkpoint_dir=checkpoint_dir,
            lora_rank=lora_rank,
        ),
        candidate=Candidate(
            layout=ParallelLayout(
                data_parallel_size=data,
                tensor_parallel_size=tensor,
                pipeline_parallel_size=pipeline,
                stage_layers=stage_layers or partition_layers(NUM_LAYERS, pipeline),
            ),
            batch=BatchSplit(
                micro_batch_size=micro_batch_size,
                gradient_accumulation_steps=accumulation,
                data_parallel_size=data,
            ),
            zero_stage=zero,
            precision=Precision(precision),
            activation_checkpointing=ActivationCheckpointing.parse(checkpointing),
            attention=Attention(attention),
            tuning=tuning,
        ),
        device=DeviceKind.CPU,
        ds_config_json=json.dumps(ds_config),
        steps=steps,
    )


def run_layouts(tasks: dict[str, TrialTask], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Train each task up to its number of steps; one that names a checkpoint folder goes on from the checkpoint in it,
    if there is one, and leaves one there.

    Per task a list over ranks of `losses`, `sequences` and `skipped`, or `error` where one failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps({name: to_plain(task) for name, task in tasks.items()}))
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__)), str(folder)]
    with (folder / "log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)
    return json.loads((folder / "results.json").read_text())


def _train(rank: int, task: TrialTask, meeting: str) -> dict[str, Any]:
    from planner.runtime.distributed import start_distributed
    from planner.runtime.evaluation import Evaluation
    from planner.runtime.export import export_model
    from planner.runtime.session import build_session

    world_size = task.candidate.layout.world_size
    start_distributed(device=DeviceKind.CPU, rank=rank, world_size=world_size, local_rank=rank, init_method=meeting)
    session = build_session(task, on_phase=lambda phase: None)
    folder = task.training.checkpoint_dir
    if folder:
        session.load_checkpoint(folder)
    losses, sequences = [], []
    while session.steps_done < task.steps:
        losses.append(session.train_step().loss)
        sequences.append(session.sequences_per_step)
    if folder:
        session.save_checkpoint(folder)
    if folder.endswith(EXPORTED):
        export_model(session, task, Path(folder) / "model")
    result = {"losses": losses, "sequences": sequences, "skipped": session.skipped_steps}
    if task.training.run.eval_path:
        result["evaluated"] = Evaluation(session, task).loss()
    return result


def _rank_main(rank: int, task: TrialTask, place: Path) -> None:
    try:
        result = _train(rank, task, f"file://{place}/meeting")
    except BaseException as problem:
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(problem).__name__}: {problem}"}
    (place / f"{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if "error" not in result else 1)


def _run_one(task: TrialTask) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        ranks = {}
        for rank in range(task.candidate.layout.world_size):
            pid = os.fork()
            if pid == 0:
                _rank_main(rank, task, place)
            ranks[pid] = rank
        num_ranks = len(ranks)
        while ranks:
            pid, status = os.wait()
            ranks.pop(pid)
            if status:  # its peers would wait for it
                for other in ranks:
                    os.kill(other, 9)
        files = [place / f"{rank}.json" for rank in range(num_ranks)]
        return [json.loads(file.read_text()) if file.exists() else {"error": "killed"} for file in files]


def _main(folder: Path) -> None:
    import torch

    import planner.runtime.session  # noqa: F401  the import that every rank would otherwise pay

    torch.set_num_threads(1)
    tasks = json.loads((folder / "tasks.json").read_text())
    results = {name: _run_one(from_plain(TrialTask, task)) for name, task in tasks.items()}
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
