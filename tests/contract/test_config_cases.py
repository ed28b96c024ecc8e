"""`planner check` against public configurations and bug reports (tests/data/configs/cases.yaml): the right verdict, and
not a finding more. Every case of the file is held; none had to be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.app.check import check_config_file
from planner.app.check_request import CheckRequest, CheckResult, ConfigReader

DATA = Path(__file__).parents[1] / "data" / "configs"
CASES = yaml.safe_load((DATA / "cases.yaml").read_text(encoding="utf-8"))
RUNS = [(case["id"], place, run) for case in CASES for place, run in enumerate(case["runs"])]

# Words that a case's findings must hold, in any of its findings or notes: run, words.
SAYS: dict[str, list[tuple[int, str]]] = {
    "DSC-02": [(0, "is 252, not train_batch"), (0, "252 or 266"), (0, "8 data-parallel ranks with accumulation 16")],
    "DSC-03": [(0, "is 64, not train_batch_size"), (0, "gradient_accumulation_steps: 4"), (0, "'auto' for all three")],
    "DSC-06": [(0, "older releases take any string for true"), (0, "write false, without quotes")],
    "DSC-09": [(0, "Hugging Face placeholder")],
    "DSC-12": [(0, "ZeRO stage 2 with 2 pipeline stages"), (0, "'cpu_offload' is deprecated")],
    "DSC-14": [(0, "DeepSpeedCPUAdam"), (0, "at the top level"), (0, "has no effect")],
    "DSC-15": [(0, "optimizer block is not used"), (0, "apex FusedAdam"), (0, "'1e-4', a string")],
    "DSC-17": [(0, 'offload_optimizer {"device": "cpu"}'), (1, "both set")],
    "DSC-21": [(0, "write 15099494"), (2, "fraction is dropped")],
    "DSC-25": [(1, "3 GB of the GPU's"), (1, "doubled by overlap_comm"), (1, "50000000 or smaller")],
    "DSC-28": [(0, "never worked with ZeRO stage 3"), (1, "OneBitAdam with ZeRO stage 3")],
    "DSC-30": [(1, "2000 times the optimizer's"), (1, "divided by zero"), (2, "a comment at line 2")],
    "DSC-32": [(0, "line 3 column 3"), (0, "hjson and takes it"), (0, "2 GB")],
    "DSC-33": [(0, "16777216"), (0, "15099494"), (0, "40960"), (0, "newer transformers look into text_config")],
    "DSC-37": [(0, "no key 'loss_scale' in bf16"), (0, "WarmupLR is constant after the warm-up")],
    "DSC-39": [(1, "none, cpu, nvme"), (2, "offload_optimizer.fast_init"), (4, "nvme_path")],
    "DSC-40": [(0, "stage3_param_persistence_threshold"), (0, "gradient_clipping"), (0, "static loss_scale")],
    "CFG-04": [(0, "DeepCompile"), (0, "skipped steps only"), (1, "since DeepSpeed 0.16.6")],
    "CFG-05": [(0, "least memory for the most communication"), (0, "18 bytes a parameter"), (0, "1.5 times")],
    "CFG-06": [(2, "since DeepSpeed 0.17.5")],
    "CFG-08": [(0, "'gradient_accumulation_steps ' has a blank")],
    "CFG-09": [(0, "0.19.7 and newer refuse"), (2, "Lamb")],
    "CFG-12": [(1, "'CONFIG_BATCH_SIZE' is a template's placeholder")],
    "CFG-13": [(0, "0.19.8 and newer refuse"), (1, "MoE layers at stage 3")],
    "CFG-15": [(0, "'sub_group_size' has no effect at stage 2"), (0, "the Trainer's max_grad_norm")],
    "CFG-16": [(0, "zero_to_fp32.py"), (0, "host memory")],
    "CFG-17": [(0, "is 1 GB of GPU memory")],
    "CFG-18": [(0, "lets the script's own optimizer step on the CPU")],
    "CFG-22": [(0, "becomes 1024 on 8 data-parallel ranks"), (0, "stage3_param_persistence_threshold")],
    "CFG-25": [(1, "since DeepSpeed 0.16.6")],
}  # fmt: skip

BATCHES = {
    "CFG-06": (0, {"train_micro_batch_size_per_gpu": 2}),
    "CFG-09": (0, {"gradient_accumulation_steps": 16}),
    "CFG-22": (0, {"train_micro_batch_size_per_gpu": 1024}),
}


def check(run: dict[str, Any], folder: Path) -> CheckResult:
    """The use case on the run's configuration, with the run's flags."""
    flags = dict(run.get("flags", {}))
    if "consumer" in flags:
        flags["consumer"] = ConfigReader(flags["consumer"])
    if "model_config" in run:
        (folder / "config.json").write_text(json.dumps(run["model_config"]))
        flags["model"] = str(folder / "config.json")
    return check_config_file(CheckRequest(config=str(config_path(run, folder)), **flags))


def config_path(run: dict[str, Any], folder: Path) -> Path:
    path = folder / "ds_config.json"
    if "accelerate" in run:
        path = folder / "accelerate.yaml"
        path.write_text(yaml.safe_dump(run["accelerate"]))
    elif "text" in run:
        path.write_text(run["text"])
    elif "file" in run:
        text = (DATA / run["file"]).read_text()
        path.write_text(json.dumps({**json.loads(text), **run["patch"]}) if "patch" in run else text)
    else:
        path.write_text(json.dumps(run["config"]))
    return path


@pytest.mark.parametrize(("case", "place", "run"), RUNS, ids=[f"{case}.{place}" for case, place, _run in RUNS])
def test_case_gets_its_findings_and_no_others(case: str, place: int, run: dict[str, Any], tmp_path: Path) -> None:
    result = check(run, tmp_path)
    assert result.ok == run["ok"]
    assert sorted(f"{item.severity} {item.code} {item.key}" for item in result.findings) == run["findings"]
    shown = "\n".join(f"{item.message} {item.why} {item.fix}" for item in (*result.findings, *result.notes))
    for number, words in SAYS.get(case, []):
        assert number != place or words in shown
    number, batch = BATCHES.get(case, (place, {}))
    assert number != place or batch.items() <= dict(result.batch).items()


def test_sequence_parallel_ranks_are_taken_out_of_the_batch(tmp_path: Path) -> None:
    (run,) = next(case["runs"] for case in CASES if case["id"] == "CFG-20")
    assert check(run, tmp_path).data_parallel_size == 1


def test_every_case_has_its_words_checked_or_its_findings_empty() -> None:
    told = {case["id"] for case in CASES if any(run["findings"] for run in case["runs"])}
    silent = {"DSC-07", "DSC-38", "DSC-42"}  # keys and codes say it all
    assert told <= set(SAYS) | silent
    assert {*SAYS, *BATCHES} <= {case["id"] for case in CASES}
