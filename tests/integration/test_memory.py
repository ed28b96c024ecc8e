"""Memory that runs out in real trials: the search goes on, and when nothing fits it says so."""

from __future__ import annotations

from pathlib import Path

from tests.integration.children import planner, read_plan, read_trials, succeed, write_job

# One to 32 sequences of 256 tokens a micro-batch: activations from a few MiB to hundreds.
JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 256, global_batch_size: 32}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 0.2}
search:
  zero_stage: 0
  tensor_parallel_size: 1
  pipeline_parallel_size: 1
  micro_batch_size: [1, 8]
  activation_checkpointing: none
  precision: fp32
trials: {mode: real, max_trials: 4, time_budget: 200s, steps: 1, timeout: 60s}
"""


def _ends(plan_dir: Path) -> dict[str, str]:
    return {trial["key"]: trial["outcome"]["type"] for trial in read_trials(plan_dir)}


def test_search_goes_on_after_out_of_memory_and_finds_what_fits(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    document = succeed("plan", write_job(tmp_path, JOB), "--out", folder, "--json").document
    ends = _ends(folder)
    assert sorted(ends.values()) == ["Measured", "OutOfMemory"]
    assert ends[document["key"]] == "Measured"
    assert document["plan"]["candidate"]["batch"]["micro_batch_size"] == 1
    assert document["plan"]["search"]["num_out_of_memory"] == 1
    promise = read_plan(folder)["promise"]
    assert promise["device_used_bytes"] <= 0.95 * promise["usable_bytes"]
    assert "ran out of device memory" in (folder / "report.md").read_text()


def test_every_trial_out_of_memory_ends_with_3_and_the_tally(tmp_path: Path) -> None:
    job, folder = write_job(tmp_path, JOB), tmp_path / "plan"
    run = planner("plan", job, "--out", folder, "--set", "search.micro_batch_size=8", "--json")
    assert run.exit_code == 3, run.err
    assert set(_ends(folder).values()) == {"OutOfMemory"}
    assert run.document["tally"] == {"out of memory": 1}
    assert "1 out of memory" in run.document["why"]
    assert not (folder / "plan.yaml").exists()
    resumed = planner("plan", job, "--out", folder, "--set", "search.micro_batch_size=8", "--resume", "--json")
    assert (resumed.exit_code, resumed.document["tally"]) == (3, {"out of memory": 1})
    assert len(read_trials(folder)) == 1
