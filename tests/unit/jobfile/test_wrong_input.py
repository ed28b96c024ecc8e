"""Wrong job files: each ends in the three-line error with its mend, in an instant, never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import load_job, resolve_job
from tests.unit.jobfile.jobs import MINIMAL, write_job

# What is appended to the minimal job (from line 4 on), what the error says, what the fix says.
APPENDED = [
    ("search: {zero_stge: 1}", "line 4: search.zero_stge is not a key of `search`", "did you mean 'zero_stage'?"),
    ("serch: {}", "line 4: serch is not a key of the job file", "did you mean 'search'?"),
    ("seq_len: 5", "line 4: seq_len is not a key", "its place is `training.seq_len`"),
    ("xyzzy: 5", "line 4: xyzzy is not a key", "remove it"),
    ("search: {zero_stage: 4}", "search.zero_stage must be from 0 to 3, found 4", "correct"),
    ("search: {zero_stage: '1'}", "must be a whole number or a list of them, found the text '1'", "without quotes"),
    ("search: {zero_stage: 1.0}", "found the number 1.0", "without quotes"),
    ("search: {zero_stage: true}", "found the truth value true", "without quotes"),
    ("search:\n  zero_stage:\n    - 1\n    - x", "line 5: search.zero_stage must be a whole number", "without quotes"),
    ("search: {zero_stage: [1, 1]}", "lists 1 twice", "once"),
    ("search: {zero_stage: []}", "must list from 1 to 64 values", "leave the key out"),
    ("search: {micro_batch_size: 0}", "must be from 1 to 65536, found 0", "correct"),
    ("search: {micro_batch_size: 999999999999999999999999}", "must be from 1 to 65536", "correct"),
    ("search: {precision: bf17}", "must be one of fp32, fp16, bf16, fp8", "did you mean bf16?"),
    ("search: {precision: fp8}", "fp8 cannot be planned yet", "bf16"),
    ("search: {activation_checkpointing: layers:0}", "must be none, selective, full or layers:k", "layers:4"),
    ("search: {activation_checkpointing: [layers: 4]}", "found a mapping", "layers:4"),
    ("search: {offload_optimizer: disk}", "must be one of none, cpu, nvme", "cpu"),
    ("search: {reduce_bucket_size: 123}", "must be 1, 2 or 5 times a power of ten", "50000000"),
    ("search: {zero_hpz_partition_size: 3}", "must be a power of two", "8"),
    ("search: {torch_compile: all}", "must be one of none, layer, whole", "layer"),
    ("search: {data_parallel_size: 2}", "search.data_parallel_size cannot be set", "tensor_parallel_size"),
    ("search: {zero_quantized_weights: true}", "search.zero_quantized_weights cannot be set", "remove it"),
    ("search: 3", "search must be a mapping of keys, found the number 3", "indent"),
    ("search: [zero_stage]", "search must be a mapping of keys, found a list", "indent"),
    ("trials: {time_budget: 15 minutes}", "must be a duration, found the text '15 minutes'", "15m"),
    ("trials: {timeout: -3}", "from 1 millisecond to 30 days", "90s"),
    ("trials: {time_budget: 0s}", "from 1 millisecond to 30 days", "90s"),
    ("trials: {time_budget: 99999999h}", "from 1 millisecond to 30 days", "90s"),
    ("trials: {max_trials: -1}", "must be at least 0, found the number -1", "at least 0"),
    ("trials: {mode: none, sampler: tpee}", "must be one of guided, tpe, random", "guided"),
    ("memory_headroom: .nan", "must be a finite number", "ordinary"),
    ("memory_headroom: -.inf", "must be a finite number", "ordinary"),
    ("memory_headroom: 1e999", "must be a finite number", "ordinary"),
    ("memory_headroom: 2", "must be at most 0.9, found the number 2", "at most 0.9"),
    ("memory_headroom: 5%", "must be a number, found the text '5%'", "without quotes"),
    ("objective: fastest", "must be one of throughput, cost, fewest_gpus", "throughput"),
    ("launch: {command: train.py}", "does not pass {deepspeed_config}", "--deepspeed {deepspeed_config}"),
    ("launch: {command: 'a {deepspeed_config} {micro_batch}'}", "unknown slot {micro_batch}", "micro_batch_size"),
    ('launch: {command: "a \'{deepspeed_config}"}', "cannot be split into words", "quotes"),
    ("launch: {launcher: slrum}", "must be one of torchrun, deepspeed, slurm", "did you mean slurm?"),
    ("launch: {master_port: 99999999999999999999999}", "must be at most 65535", "65535"),
    ("launch: {master_port: 99999999999999999999999999999999999}", "a number of 35 digits", "sensible"),
    (
        "environment: {VERSION: 1.10}",
        "has for VERSION the number 1.1, not a text",
        "put the value of VERSION in quotes",
    ),
    ("slurm: {Account: x}", "has the key 'Account', which is no long option of sbatch", "small letters"),
    ("slurm: {ntasks_per_node: 8}", "has ntasks_per_node, which the plan's layout decides", "remove it"),
    ("slurm: {mem-per-cpu: 4G, mem_per_cpu: 8G}", "one key in two spellings", "keep one"),
    ("launch: {command: 't.py {deepspeed_config} | tee log'}", "holds the shell operator '|'", "one Python program"),
    (
        "launch: {command: 'accelerate t.py {deepspeed_config}'}",
        "starts accelerate, but not its launch",
        "accelerate launch",
    ),
    ("environment: {A: true}", "has for A the truth value true", "quotes"),
    ("environment: {A=B: x}", "which is no name of an environment variable", "letters"),
    ("kubernetes: {imge: x}", "unknown key 'imge'", "did you mean 'image'?"),
    ("slurm: {a: 1}\nlaunch: {slurm: {b: 2}}", "slurm is given twice", "keep one"),
    ("cluster: {}", "line 4: the key 'cluster' is there twice (first on line 3)", "remove one"),
    ("? [a]\n: b", "a key is not a plain word", "key: value"),
    ("---\na: 1", "a second document starts here", "one document"),
    ("\tx: 1", "line 4: not valid YAML", "spaces"),
    ("x: [", "not valid YAML", "brackets"),
    ("a: !!python/object:os.system x", "is not taken", "without a tag"),
    ("search: &a {zero_stage: *a}", "has no anchor before it", "write the value out"),
    ("extends: nowhere.yaml", "there is no file", "job file"),
    ("extends: [a]", "extends is not a path", "base.yaml"),
]

# What is set over the minimal job with --set.
SET = [
    ("training.seq_len=x", "--set training.seq_len: training.seq_len must be a whole number", "without quotes"),
    ("training.seq_len='8'", "found the text '8'", "without quotes"),
    ("training.seq_len=", "training.seq_len must be a whole number, found nothing", "whole number"),
    ("training.seq_len=1e3", "found the number 1000.0", "without quotes"),
    ("training.seq_len=-1", "must be at least 1", "at least 1"),
    ("training.seq_len=99999999999", "must be at most 10000000", "at most"),
    ("training.seqlen=8", "training.seqlen is not a key of `training`", "seq_len"),
    ("training.micro_batch_size=8", "training.micro_batch_size cannot be set", "search"),
    ("training.seq_len.x=1", "training.seq_len is a single value", "set training.seq_len itself"),
    ("training.seq_len", "is not key=value", "--set training.seq_len=4096"),
    ("=", "is not key=value", "--set"),
    (".a=1", "is not key=value", "--set"),
    ("a.b.c=1", "--set a.b.c: a is not a key of the job file", "remove it"),
    ("search.zero_stage=[1", "not valid YAML", "brackets"),
    ("training.optimizer={name: sgd, betas: [0.9, 0.9]}", "has betas, which sgd does not take", "remove betas"),
    ("training.optimizer={momentum: 0.9}", "has momentum, which adamw does not take", "sgd, muon"),
    ("training.optimizer.name=adm", "must be one of adamw", "did you mean adamw?"),
    ("training.optimizer.name=adam8bit", "adam8bit cannot be planned yet", "adamw"),
    ("training.optimizer.lr=0", "must be more than 0, found the number 0", "more than 0"),
    ("training.optimizer.betas=[0.9]", "must be two numbers from 0 to below 1", "[0.9, 0.95]"),
    ("training.optimizer.betas=[false, false]", "must be two numbers from 0 to below 1", "[0.9, 0.95]"),
    ("training.optimizer.betas=[0.9, 1.0]", "must be two numbers from 0 to below 1", "[0.9, 0.95]"),
    ("training.monitoring={memory_budgets: {forwards: 0.5}}", "must map phases to shares", "forward"),
    ("training.data={path: t.bin, eval_interval: 5}", "has eval_interval, but no eval_path", "eval_path"),
    ("training.trainable=some", "must be full or {lora_rank: r}", "full"),
    ("training.schedule.warmup_steps=2000", "has 2000 warm-up steps of 1000 steps", "warmup_steps"),
    ("training.data={path: x, token_bytes: 3}", "token_bytes 3", "2 or 4"),
    ("cluster.gpu=h300", "--set cluster.gpu: there is no GPU 'h300'", "did you mean"),
    ("cluster.gpu=auto", "this machine was not looked at", "name the GPU"),
    ("cluster.nodes=0", "must be from 1 to 100000 nodes, found 0", "correct"),
    ("cluster.nodes=1.5", "must be a whole number of nodes, found the number 1.5", "{from: 256, to: 2048, step: 8}"),
    ("cluster.nodes=[4, true]", "must be a whole number of nodes, found the truth value true", "[8, 16, 32]"),
    ("cluster.nodes=[]", "must list from 1 to 4096 sizes, found 0", "[8, 16, 32]"),
    ("cluster.nodes=[2, 4, 2]", "lists 2 twice", "once"),
    ("cluster.nodes={from: 8}", "has no 'to' in its range of sizes", "{from: 256"),
    ("cluster.nodes={from: 8, to: 4}", "goes from 8 down to 4", "smaller"),
    ("cluster.nodes={from: 1, to: 9, by: 2}", "has an unknown key 'by'", "step"),
    ("cluster.nodes={from: 1, to: 9, step: 0}", "must be from 1 to 100000 nodes, found 0", "correct"),
    ("cluster.nodes={from: 1, to: 100000}", "names 100000 sizes, at most 4096", "step"),
    ("cluster.file=c.yaml", "has gpu and file", "exactly one"),
    ("cluster={nodes: 2}", "says no hardware", "exactly one"),
    ("cluster={name: dgx-h1000}", "there is no cluster 'dgx-h1000'", "dgx-h100"),
    ("cluster={file: nowhere.yaml}", "there is no file", "cluster file"),
    ("cluster.intra_node_link=nvlink9", "there is no link 'nvlink9'", "nvlink"),
    ("cluster.intra_node_link={name: mine}", "cluster.intra_node_link.gb_per_s is missing", "add `gb_per_s:`"),
    ("cluster={resolved: {gpu: 1}}", "cluster.resolved.gpu: expected a mapping", "job.yaml"),
    ("model={}", "says no model", "name:, config: or factory:"),
    ("model={name: lama-3.1-8b}", "there is no model 'lama-3.1-8b'", "llama-3.1-8b"),
    ("model={config: nowhere.json}", "there is no file", "model config"),
    ("model={config: 5}", "must be the path of a config.json", "config:"),
    ("model={config: {model_type: llama, hidden_size: 8}}", "has no 'num_attention_heads'", "add"),
    ("model={config: {hidden_size: 64, num_layers: 2, num_heads: 2}}", "has no 'model_type'", "config.json"),
    ("model={factory: a.b}", "must be package.module:function", "function"),
    ("model={factory: 'a.b:c'}", "has not been traced", "planner plan"),
    ("model={factory: 'a.b:c', config: x}", "has both config and factory", "keep the one"),
    ("model.name=gpt2,x", "there is no model", "gpt2"),
    ("launch.python_path=[src, 5]", "must be a folder or a list of them", "[src, ../lib]"),
    ("launch.python_path='a:b'", "modules cannot be imported from", "path without that character"),
]


def _refused(path: Path, overrides: tuple[str, ...], *, error: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_job(load_job(path, overrides))
    assert error in caught.value.error
    assert fix in caught.value.fix
    assert caught.value.why
    assert "\n" not in caught.value.error + caught.value.why + caught.value.fix
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(("text", "error", "fix"), APPENDED)
def test_load_job_wrong_line_is_refused(tmp_path: Path, text: str, error: str, fix: str) -> None:
    _refused(write_job(tmp_path, MINIMAL + text + "\n"), (), error=error, fix=fix)


@pytest.mark.parametrize(("override", "error", "fix"), SET)
def test_load_job_wrong_override_is_refused(tmp_path: Path, override: str, error: str, fix: str) -> None:
    _refused(write_job(tmp_path, MINIMAL), (override,), error=error, fix=fix)


@pytest.mark.parametrize("section", ["model", "training", "cluster"])
def test_load_job_missing_section_is_named(tmp_path: Path, section: str) -> None:
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(section))
    _refused(write_job(tmp_path, text), (), error=f"{section} is missing", fix=f"add `{section}:`")


@pytest.mark.parametrize("key", ["seq_len", "global_batch_size"])
def test_load_job_missing_key_is_named(tmp_path: Path, key: str) -> None:
    text = MINIMAL.replace(f"{key}: ", f"# {key}: ").replace("training: {", "training: {steps: 5, ").replace("}", "\n}")
    _refused(write_job(tmp_path, text), (), error=f"training.{key} is missing", fix=f"add `{key}:` under `training`")


def test_load_job_misspelt_key_is_told_before_the_key_that_misses(tmp_path: Path) -> None:
    text = MINIMAL.replace("seq_len", "seq_lenght")
    with pytest.raises(InputError) as caught:
        load_job(write_job(tmp_path, text))
    assert caught.value.error.startswith(f"{tmp_path}/job.yaml line 2: training.seq_lenght is not a key")
    assert "training.seq_len is missing" in caught.value.error
    assert "did you mean 'seq_len'" in caught.value.fix


def test_load_job_many_mistakes_are_told_together_but_not_all(tmp_path: Path) -> None:
    text = MINIMAL + "".join(f"wrong{number}: 1\n" for number in range(30))
    _refused(write_job(tmp_path, text), (), error="and 26 more", fix="remove it")


def test_load_job_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path, "extends: b.yaml\n", "a.yaml")
    write_job(tmp_path, "extends: a.yaml\n", "b.yaml")
    _refused(tmp_path / "a.yaml", (), error="in a circle", fix="remove `extends:`")


def test_load_job_mistake_in_the_base_names_the_base(tmp_path: Path) -> None:
    write_job(tmp_path, MINIMAL + "memory_headroom: 7\n", "base.yaml")
    path = write_job(tmp_path, "extends: base.yaml\n")
    _refused(path, (), error=f"{tmp_path}/base.yaml line 4: memory_headroom", fix="at most 0.9")


def test_resolve_job_sequence_longer_than_learned_positions_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path, MINIMAL.replace("tiny-llama-cpu", "gpt2"))
    _refused(path, ("training.seq_len=2048",), error="longer than the 1024 positions of gpt2", fix="1024 or less")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("nodes: 0", "at least one GPU"),
        ("nodes: 1e400", "expected int"),
        ("nodes: 10000000000000000000000", "not a figure"),
        ("host_memory_bytes: -1", "not a figure"),
        ("is_this_machine: 1", "expected bool"),
        ("extra: 1", "unknown key 'extra'"),
    ],
)
def test_resolve_job_written_out_cluster_with_absurd_figures_is_refused(
    tmp_path: Path, change: str, error: str
) -> None:
    from planner.jobfile import dump_job

    text = dump_job(resolve_job(load_job(write_job(tmp_path, MINIMAL))))
    key = change.partition(":")[0]
    lines = [line for line in text.splitlines() if not line.startswith(f"    {key}:")]
    lines.insert(lines.index("  resolved:") + 1, f"    {change}")
    _refused(write_job(tmp_path, "\n".join(lines)), (), error=error, fix="job.yaml")
