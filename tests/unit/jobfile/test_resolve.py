"""What a job file means: defaults, names, paths, machines, factories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.emit import command, program
from planner.errors import InputError
from planner.jobfile import JobFile, MachineFacts, load_job, resolve_job
from planner.jobfile.launch_schema import COMMAND_SLOTS
from planner.jobfile.quantities import parse_duration
from planner.resources import find_data_dir
from planner.spec import (
    ActivationCheckpointing,
    DeviceKind,
    JobSpec,
    Launcher,
    ModelFamily,
    Objective,
    OptimizerName,
    Precision,
    SearchRanges,
    TracedModule,
    TrialMode,
    TrialPolicy,
)
from tests.unit.jobfile.jobs import MINIMAL, job_of, write_job

GIB = 1 << 30

FULL = """\
model: {name: llama-3.1-8b}
training:
  seq_len: 8192
  global_batch_size: 512
  optimizer: {name: adamw, lr: 3.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, eps: 1e-9}
  gradient_clipping: 0.5
  trainable: full
  seed: 7
  steps: 5000
  schedule: {warmup_steps: 100, min_lr_fraction: 0.2}
  data: {path: tokens.bin, token_bytes: 2}
  checkpoint: {folder: saved, interval: 250}
cluster: {gpu: H100-80GB, nodes: 8, gpus_per_node: 8}
search:
  zero_stage: [3, 1]
  tensor_parallel_size: 8
  pipeline_parallel_size: [1, 2]
  micro_batch_size: [2, 1]
  activation_checkpointing: [none, selective, full, layers:4]
  precision: [bf16, fp16]
objective: cost
memory_headroom: 0.1
trials: {mode: real, max_trials: 12, time_budget: 1h30m, steps: 7, timeout: 90s, sampler: tpe}
launch: {launcher: slurm, command: "train.py -d {deepspeed_config} --mb {micro_batch_size}", master_port: 12345,
         python_path: [src, /opt/lib]}
slurm: {partition: gpu, time: "24:00:00", nice: 5}
environment: {NCCL_DEBUG: INFO, A: "0.5"}
"""


def test_resolve_job_every_key_arrives(tmp_path: Path) -> None:
    job = job_of(tmp_path, FULL)
    training = job.training
    assert (training.seq_len, training.global_batch_size, training.seed, training.steps) == (8192, 512, 7, 5000)
    assert training.optimizer.name is OptimizerName.ADAMW
    assert (training.optimizer.learning_rate, training.optimizer.betas) == (3e-4, (0.9, 0.95))
    assert (training.optimizer.weight_decay, training.optimizer.epsilon) == (0.1, 1e-9)
    assert (training.gradient_clipping, training.warmup_steps, training.min_learning_rate_fraction) == (0.5, 100, 0.2)
    assert (training.data.path, training.data.token_bytes) == (str(tmp_path / "tokens.bin"), 2)
    assert (training.checkpoint_dir, training.checkpoint_interval_steps) == (str(tmp_path / "saved"), 250)
    assert (job.cluster.gpu.name, job.cluster.world_size) == ("h100-sxm-80gb", 64)
    assert job.ranges == SearchRanges(
        zero_stage=(1, 3),
        tensor_parallel_size=(8,),
        pipeline_parallel_size=(1, 2),
        micro_batch_size=(1, 2),
        activation_checkpointing=tuple(
            ActivationCheckpointing.parse(word) for word in ("none", "selective", "full", "layers:4")
        ),
        precision=(Precision.BF16, Precision.FP16),
    )
    assert (job.objective, job.memory_headroom_fraction) == (Objective.COST, 0.1)
    assert job.trials == TrialPolicy(
        mode=TrialMode.REAL, max_trials=12, time_budget_s=5400.0, steps=7, timeout_s=90.0, sampler="tpe"
    )
    assert (job.launch.launcher, job.launch.master_port) == (Launcher.SLURM, 12345)
    assert job.launch.slurm == (("nice", "5"), ("partition", "gpu"), ("time", "24:00:00"))
    assert job.launch.environment == (("A", "0.5"), ("NCCL_DEBUG", "INFO"))
    assert job.launch.python_path == (str(tmp_path / "src"), "/opt/lib")


def test_resolve_job_left_out_means_the_documented_defaults(tmp_path: Path) -> None:
    job = job_of(tmp_path, MINIMAL)
    assert job.ranges == SearchRanges(precision=(Precision.BF16,))
    assert job.trials == TrialPolicy()
    assert job.memory_headroom_fraction == 0.05
    assert (job.training.data.path, job.training.checkpoint_dir, job.launch.command) == ("", "", "")
    assert (job.cluster.nodes, job.cluster.gpus_per_node, job.cluster.is_this_machine) == (1, 2, False)


@pytest.mark.parametrize("section", ["search:", "trials:", "launch:", "search: {}", "environment:"])
def test_resolve_job_empty_section_is_a_section_of_defaults(tmp_path: Path, section: str) -> None:
    assert job_of(tmp_path, MINIMAL + section + "\n") == job_of(tmp_path, MINIMAL)


@pytest.mark.parametrize(("gpu", "precision"), [("v100", "fp16"), ("a100", "bf16"), ("cpu", "bf16")])
def test_resolve_job_precision_left_out_follows_the_gpu(tmp_path: Path, gpu: str, precision: str) -> None:
    assert job_of(tmp_path, MINIMAL, f"cluster.gpu={gpu}").ranges.precision == (Precision(precision),)


def test_resolve_job_environment_under_launch_or_at_the_top_is_the_same(tmp_path: Path) -> None:
    at_top = job_of(tmp_path, MINIMAL + "environment: {A: b}\nkubernetes: {image: i}\n")
    inside = job_of(tmp_path, MINIMAL + "launch: {environment: {A: b}, kubernetes: {image: i}}\n")
    assert at_top == inside


def test_load_job_overrides_apply_in_order_over_the_file(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        MINIMAL,
        "training.seq_len=64",
        "training.seq_len=256",
        "search.zero_stage=[0, 1]",
        "trials.time_budget=2m",
        "training.optimizer.lr=1e-4",
    )
    assert job.training.seq_len == 256
    assert job.ranges.zero_stage == (0, 1)
    assert job.trials.time_budget_s == 120
    assert job.training.optimizer.learning_rate == 1e-4


def test_load_job_extends_lays_the_file_over_its_base(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    write_job(tmp_path / "shared", MINIMAL + "search: {zero_stage: 1, micro_batch_size: [1, 2]}\n", "base.yaml")
    job = job_of(tmp_path, "extends: shared/base.yaml\nsearch: {micro_batch_size: 4}\ntraining: {seq_len: 64}\n")
    assert (job.ranges.zero_stage, job.ranges.micro_batch_size) == ((1,), (4,))
    assert (job.training.seq_len, job.training.global_batch_size) == (64, 16)


def test_resolve_job_config_path_is_relative_to_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    spec = job_of(tmp_path, MINIMAL).model
    (tmp_path / "my-model" / "config.json").write_text(spec.config_json)
    monkeypatch.chdir("/")
    for written in ("my-model", "my-model/config.json", "./my-model"):
        job = job_of(tmp_path, MINIMAL.replace("name: tiny-llama-cpu", f"config: {written}"))
        assert (job.model.name, job.model.counts) == ("my-model", spec.counts)
    named = job_of(tmp_path, MINIMAL.replace("name: tiny", "config: my-model, name: tiny"))
    assert named.model == spec


def test_resolve_job_config_may_be_written_in_place(tmp_path: Path) -> None:
    spec = job_of(tmp_path, MINIMAL).model
    text = MINIMAL.replace("{name: tiny-llama-cpu}", f"{{name: tiny-llama-cpu, config: {spec.config_json}}}")
    assert job_of(tmp_path, text).model == spec
    assert json.loads(spec.config_json)["hidden_size"] == 128


@pytest.mark.parametrize("name", ["lion", "muon", "sgd"])
def test_resolve_job_optimizer_takes_its_own_usual_values(tmp_path: Path, name: str) -> None:
    optimizer = job_of(tmp_path, MINIMAL, f"training.optimizer.name={name}").training.optimizer
    assert optimizer.momentum == {"lion": 0.0, "muon": 0.95, "sgd": 0.0}[name]
    assert optimizer.betas == {"lion": (0.9, 0.99), "muon": (0.9, 0.999), "sgd": (0.9, 0.999)}[name]


def test_resolve_job_cluster_by_name_and_by_file(tmp_path: Path) -> None:
    by_name = job_of(tmp_path, MINIMAL.replace("{gpu: cpu}", "{name: dgx-h100, nodes: 4}")).cluster
    assert (by_name.gpu.name, by_name.world_size, by_name.name) == ("h100-sxm-80gb", 32, "dgx-h100")
    (tmp_path / "lab.yaml").write_text("name: lab\ngpu: a100\nnodes: 2\ngpus_per_node: 4\n")
    by_file = job_of(tmp_path, MINIMAL.replace("{gpu: cpu}", "{file: lab.yaml, gpus_per_node: 2}")).cluster
    assert (by_file.gpu.name, by_file.world_size) == ("a100-sxm-80gb", 4)


def test_resolve_job_cluster_links_and_memory_can_be_said(tmp_path: Path) -> None:
    said = "{gpu: h100, intra_node_link: pcie5, inter_node_link: ethernet-100, host_memory_gib: 64, memory_gib: 40}"
    cluster = job_of(tmp_path, MINIMAL.replace("{gpu: cpu}", said)).cluster
    assert (cluster.intra_node_link.name, cluster.inter_node_link.name) == ("pcie5", "ethernet-100")
    assert (cluster.host_memory_bytes, cluster.gpu.memory_usable_bytes) == (64 * GIB, 40 * GIB)


def _auto(tmp_path: Path) -> JobFile:
    return load_job(write_job(tmp_path, MINIMAL.replace("gpu: cpu", "gpu: auto")))


H200 = MachineFacts(
    device=DeviceKind.CUDA,
    gpu_name="NVIDIA H200",
    num_devices=4,
    usable_bytes=130 * GIB,
    total_bytes=140 * GIB,
    host_memory_bytes=500 * GIB,
)


def test_resolve_job_auto_takes_the_machine_as_it_is(tmp_path: Path) -> None:
    job_file = _auto(tmp_path)
    assert job_file.needs_machine
    cluster = resolve_job(job_file, machine=H200).cluster
    assert (cluster.gpu.name, cluster.gpus_per_node, cluster.nodes) == ("h200-sxm-141gb", 4, 1)
    assert (cluster.gpu.memory_usable_bytes, cluster.gpu.memory_nominal_bytes) == (130 * GIB, 140 * GIB)
    assert cluster.host_memory_bytes == 500 * GIB
    assert cluster.is_this_machine


def test_resolve_job_auto_without_gpus_takes_processes(tmp_path: Path) -> None:
    facts = MachineFacts(
        device=DeviceKind.CPU,
        gpu_name="",
        num_devices=2,
        usable_bytes=3 * GIB,
        total_bytes=8 * GIB,
        host_memory_bytes=8 * GIB,
    )
    cluster = resolve_job(_auto(tmp_path), machine=facts).cluster
    assert (cluster.gpu.device, cluster.world_size, cluster.gpu.memory_usable_bytes) == (DeviceKind.CPU, 2, 3 * GIB)


def test_resolve_job_auto_with_more_gpus_than_there_are_is_refused(tmp_path: Path) -> None:
    job_file = load_job(write_job(tmp_path, MINIMAL.replace("gpu: cpu", "gpu: auto, gpus_per_node: 8")))
    with pytest.raises(InputError, match="this machine has 4"):
        resolve_job(job_file, machine=H200)


def test_resolve_job_auto_with_an_unknown_gpu_says_how_to_add_it(tmp_path: Path) -> None:
    facts = MachineFacts(
        device=DeviceKind.CUDA,
        gpu_name="NVIDIA Z9",
        num_devices=1,
        usable_bytes=GIB,
        total_bytes=GIB,
        host_memory_bytes=GIB,
    )
    with pytest.raises(InputError, match="'NVIDIA Z9', is not in the catalog") as caught:
        resolve_job(_auto(tmp_path), machine=facts)
    assert "device_names" in caught.value.fix


TRACED = TracedModule(
    num_parameters=1000,
    largest_parameter=100,
    saved_bytes_per_sample_fp32=5000,
    fixed_saved_bytes=0,
    forward_flops_per_sample=2000,
    tokens_per_sample=1,
)


def test_resolve_job_factory_is_run_whole_with_what_tracing_found(tmp_path: Path) -> None:
    text = MINIMAL.replace("name: tiny-llama-cpu", "factory: my_package.models:two_towers")
    job_file = load_job(write_job(tmp_path, text))
    assert job_file.factory == "my_package.models:two_towers"
    model = resolve_job(job_file, traced=TRACED).model
    assert (model.family, model.name, model.num_parameters) == (ModelFamily.MODULE, "two_towers", 1000)
    assert "runs whole" in model.tensor_parallel_refusal
    assert load_job(write_job(tmp_path, MINIMAL)).factory == ""


def test_resolve_job_modules_of_a_factory_lie_beside_the_job_file_unless_said_otherwise(tmp_path: Path) -> None:
    text = MINIMAL.replace("name: tiny-llama-cpu", "factory: my_models:two_towers")
    assert resolve_job(load_job(write_job(tmp_path, text)), traced=TRACED).launch.python_path == (str(tmp_path),)
    job_file = load_job(write_job(tmp_path, text), ("launch.python_path=../src",))
    assert job_file.python_path == (str(tmp_path.parent / "src"),)
    assert job_of(tmp_path, MINIMAL).launch.python_path == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("120s", 120),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("0.5s", 0.5),
        ("1h0m10.5s", 3610.5),
        ("1.5h", 5400),
        (90, 90),
    ],
)
def test_parse_duration_units_add_up(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_command_slots_are_those_that_emit_fills() -> None:
    source = Path(command.__file__).read_text() + Path(program.__file__).read_text()
    for slot in COMMAND_SLOTS:
        assert f'"{slot}"' in source


def test_job_spec_is_a_record_without_dicts(tmp_path: Path) -> None:
    job = job_of(tmp_path, FULL)
    assert isinstance(job, JobSpec)
    assert hash(job) == hash(job_of(tmp_path, FULL))


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("2", ()),
        ("[4]", ()),
        ("[4, 2]", (2, 4)),
        ("{from: 2, to: 9, step: 3}", (2, 5, 8)),
        ("{from: 2, to: 4}", (2, 3, 4)),
    ],
)
def test_cluster_nodes_may_be_several_sizes(tmp_path: Path, said: str, sizes: tuple[int, ...]) -> None:
    job = job_of(tmp_path, MINIMAL.replace("gpu: cpu", f"gpu: cpu, nodes: {said}"))
    assert job.node_counts == sizes
    assert job.cluster.nodes == max(sizes, default=int(said.strip("[]")) if not sizes else 0)


@pytest.mark.parametrize(
    ("model", "named"), [("bert-base", "BertForSequenceClassification"), ("vit-base", "ViTModel"), ("bert-base", "")]
)
def test_resolve_job_class_that_trials_do_not_build_is_refused(tmp_path: Path, model: str, named: str) -> None:
    config = json.loads((find_data_dir("configs") / "models" / f"{model}.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [named] if named else None}))
    text = MINIMAL.replace("name: tiny-llama-cpu", "config: config.json")
    if not named:
        assert job_of(tmp_path, text).model.num_parameters > 0
        return
    with pytest.raises(InputError, match=f"architectures names the class '{named}'"):
        job_of(tmp_path, text)


def test_resolve_job_kubernetes_without_an_image_is_refused_before_any_trial(tmp_path: Path) -> None:
    text = f"{MINIMAL}\nlaunch: {{launcher: kubernetes}}\n"
    with pytest.raises(InputError, match="no image is named"):
        job_of(tmp_path, text)
    assert dict(job_of(tmp_path, f"{text}kubernetes: {{image: a/b:c}}\n").launch.kubernetes) == {"image": "a/b:c"}
