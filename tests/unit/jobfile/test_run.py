"""What a job says of the reference trainer's run: read, resolved, written down again, and no part of the hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from planner.jobfile import dump_job, job_hash, load_job, resolve_job
from planner.jobfile.resolve import ADAPTED
from planner.spec import MemoryBudget, Phase, RunSpec
from tests.unit.jobfile.jobs import job_of, write_job

ROOT = Path(__file__).parents[3]


def readme_job() -> str:
    """The README's example of training without a script, on a model of the catalog."""
    text = (ROOT / "README.md").read_text().split("## Training without a script", 1)[1]
    training = yaml.safe_load(text.split("```yaml", 1)[1].split("```", 1)[0])["training"]
    training |= {"seq_len": 32, "global_batch_size": 4}
    cluster = {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1, "memory_gib": 2}
    return yaml.safe_dump({"model": {"name": "tiny-llama-cpu"}, "training": training, "cluster": cluster})


def test_readme_example_says_all_that_the_trainer_can(tmp_path: Path) -> None:
    job = job_of(tmp_path, readme_job())
    assert job.training.lora_rank == 16
    assert job.training.run == RunSpec(
        eval_path=str(tmp_path / "held-out.bin"),
        eval_interval_steps=500,
        keep_checkpoints=3,
        async_checkpoints=True,
        pretrained=str(tmp_path / "weights/llama"),
        tensorboard_dir=str(tmp_path / "board"),
        metrics_port=9400,
        memory_budgets=(MemoryBudget(phase=Phase.FORWARD, usable_fraction=0.6),),
    )


def test_run_is_written_down_and_read_back_equal_and_is_no_part_of_the_hash(tmp_path: Path) -> None:
    job = job_of(tmp_path, readme_job() + "\n")
    run = replace(job.training.run, metrics_host="0.0.0.0", eval_sequences=7)  # noqa: S104 - only written down
    job = replace(job, training=replace(job.training, run=run))
    again = resolve_job(load_job(write_job(tmp_path, dump_job(job))))
    assert again == job
    plain = replace(job, training=replace(job.training, run=RunSpec()))
    assert job_hash(plain) == job_hash(job)


def test_adapters_are_offered_for_the_models_that_the_runtime_can_cut() -> None:
    from planner.runtime.families import BLOCK_WISE_TYPES

    assert sorted(ADAPTED) == sorted(BLOCK_WISE_TYPES)
