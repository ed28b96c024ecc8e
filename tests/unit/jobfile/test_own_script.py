"""A script of the user's own in the job file: whose loop it runs, where it starts, its own config."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import dump_job, job_hash, load_job, resolve_job
from planner.space.axes import axis_values
from planner.spec import JobSpec, ScriptKind
from tests.unit.jobfile.jobs import write_job

JOB = "model: {name: tiny-llama-cpu}\ntraining: {seq_len: 64, global_batch_size: 8}\ncluster: {gpu: cpu, nodes: 1}\n"
TEXTS = {
    "from transformers import Trainer, TrainingArguments\n": ScriptKind.HUGGINGFACE,
    "import trl\ntrl.SFTTrainer\n": ScriptKind.HUGGINGFACE,
    "from transformers import AutoModel\nimport deepspeed\n": ScriptKind.DEEPSPEED,
    "from accelerate import Accelerator\n": ScriptKind.ACCELERATE,
    "import deepspeed\n": ScriptKind.DEEPSPEED,
}


def job_with(folder: Path, launch: str, more: str = "") -> JobSpec:
    return resolve_job(load_job(write_job(folder, f"{JOB}launch: {{{launch}}}\n{more}")))


@pytest.mark.parametrize(("text", "kind"), TEXTS.items())
@pytest.mark.parametrize("command", ["train.py {deepspeed_config}", "-m train {deepspeed_config}"])
def test_kind_is_seen_by_the_scripts_imports(tmp_path: Path, text: str, kind: ScriptKind, command: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert job_with(tmp_path, f"command: '{command}'").launch.script_kind is kind


@pytest.mark.parametrize(
    ("launch", "kind"),
    [
        ("command: 't.py --deepspeed {deepspeed_config} --output_dir o'", ScriptKind.HUGGINGFACE),
        ("command: 'accelerate launch --deepspeed_config_file {deepspeed_config} t.py'", ScriptKind.ACCELERATE),
        ("command: 't.py {deepspeed_config}', consumer: huggingface", ScriptKind.HUGGINGFACE),
        ("command: 't.py {deepspeed_config}'", ScriptKind.DEEPSPEED),
    ],
)
def test_script_that_is_not_here_is_judged_by_its_command(tmp_path: Path, launch: str, kind: ScriptKind) -> None:
    assert job_with(tmp_path, launch).launch.script_kind is kind


def test_job_of_the_plan_folder_means_the_same_script(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "t.py").write_text("from transformers import Trainer\n")
    (tmp_path / "ds.json").write_text('{"scheduler": {"type": "WarmupLR"}}')
    launch = "command: 't.py {deepspeed_config}', folder: src, deepspeed_config: ds.json"
    job = job_with(tmp_path, launch)
    assert job.launch.folder == str(tmp_path / "src") and "WarmupLR" in job.launch.base_config_json
    (tmp_path / "plan").mkdir()
    again = resolve_job(load_job(write_job(tmp_path / "plan", dump_job(job))))
    assert again == job
    other = job_with(tmp_path, launch.replace(", deepspeed_config: ds.json", ""))
    assert job_hash(other) != job_hash(job)


@pytest.mark.parametrize("key", ["consumer: deepspeed", "folder: src", "deepspeed_config: {}"])
def test_key_about_a_script_without_one_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="has no effect without"):
        job_with(tmp_path, key)


@pytest.mark.parametrize("text", ["", "[]", "{", None])
def test_own_config_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "ds.json").write_text(text)
    with pytest.raises(InputError, match=r"launch\.deepspeed_config"):
        job_with(tmp_path, "command: 't.py {deepspeed_config}', deepspeed_config: ds.json")


def test_axes_are_searched_when_the_command_takes_them(tmp_path: Path) -> None:
    plain = axis_values(job_with(tmp_path, "command: 't.py {deepspeed_config}'"))
    reasons = {axis.axis: axis.reason for axis in plain.left_out}
    for axis in ("tensor_parallel_size", "pipeline_parallel_size", "activation_checkpointing"):
        assert reasons[axis].startswith("a DeepSpeed config cannot tell the script to do this")
    told = axis_values(job_with(tmp_path, "command: 't.py {deepspeed_config} {pipeline_parallel_size}'"))
    assert "pipeline_parallel_size" not in {axis.axis for axis in told.left_out}
    trainer = "command: 't.py {deepspeed_config} --gradient_checkpointing False', consumer: huggingface"
    kinds = axis_values(job_with(tmp_path, trainer)).checkpointing
    assert kinds is not None and [str(kind) for kind in kinds] == ["none", "full"]
