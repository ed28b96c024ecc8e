# ruff: noqa: E501 - a table: one row a line
"""The table of wrong inputs: what a user may hand to any verb, how it must end, and what the message must say.

Each row makes its files in a new folder and gives the words to type. `{}` in the words is that folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 32, global_batch_size: 4}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2}
trials: {mode: none}
"""
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
CONFIG |= {"intermediate_size": 128}
PLAN = ("plan", "{}/job.yaml", "--out", "{}/out", "--no-validate")
ESTIMATE = ("estimate", "--model", "llama-3.1-8b", "--seq-len", "1024")

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Wrong:
    """`make` prepares the folder; `code`, `error` and `fix` are what the end must have."""

    name: str
    words: tuple[str, ...]
    error: str
    fix: str
    code: int = 2
    make: Make | None = None


def job(text: str | bytes) -> Make:
    """A folder with this job file."""

    def make(folder: Path) -> None:
        (folder / "job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


def job_with(*changes: tuple[str, str]) -> Make:
    """The good job with some words replaced by others."""
    text = JOB
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return job(text)


def config(value: object) -> Make:
    """The good job on a model config of one's own, whose text or value is given."""

    def make(folder: Path) -> None:
        job_with(("{name: tiny-llama-cpu}", "{config: config.json}"))(folder)
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / "config.json").write_bytes(content)

    return make


def file(name: str, content: str | bytes = b"") -> Make:
    """The good job and one more file."""

    def make(folder: Path) -> None:
        job(JOB)(folder)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def large(folder: Path) -> None:
    """A job file of 100 MiB that takes no room on the disk."""
    with (folder / "job.yaml").open("wb") as stream:
        stream.write(JOB.encode())
        stream.truncate(100 << 20)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "job.yaml")


def unreadable(folder: Path) -> None:
    job(JOB)(folder)
    (folder / "job.yaml").chmod(0)


def loop(folder: Path) -> None:
    (folder / "job.yaml").symlink_to(folder / "job.yaml")


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n" for below, name in zip("abcdefgh", "bcdefghi")
)

JOB_FILES = (
    Wrong("missing", PLAN, "there is no file", "path of a job file"),
    Wrong("a folder", ("plan", "{}"), "is a folder", "path of a job file"),
    Wrong("a pipe", PLAN, "is not a regular file", "path of a job file", make=pipe),
    Wrong("a link to itself", PLAN, "cannot be read", "check the path", make=loop),
    Wrong("a path of 1000 letters", ("plan", "x" * 1000), "cannot be read", "check the path"),
    Wrong("a zero byte in the path", ("plan", "a\0b"), "embedded null byte", "--help"),
    Wrong("binary", PLAN, "is not UTF-8 text", "UTF-8", make=job(b"\x7fELF\x02\x01\x01\0\0\0\xff\xfe" * 50)),
    Wrong("UTF-16", PLAN, "is not UTF-8 text", "UTF-8", make=job(JOB.encode("utf-16"))),
    Wrong("Latin-1", PLAN, "is not UTF-8 text", "UTF-8", make=job(b"model: {name: caf\xe9}\n")),
    Wrong("empty", PLAN, "is empty", "write the job file", make=job("")),
    Wrong("only comments", PLAN, "found nothing", "key: value", make=job("# nothing here\n")),
    Wrong("100 MB", PLAN, "is larger than 1 MiB", "job file itself", make=large),
    Wrong("a list", PLAN, "found a list", "key: value", make=job("- a\n- b\n")),
    Wrong("a word", PLAN, "the text 'hello'", "key: value", make=job("hello\n")),
    Wrong("JSON cut short", PLAN, "not valid YAML", "brackets", make=job('{"model": {"name": ')),
    Wrong("a tag", PLAN, "is not taken", "without a tag", make=job(JOB + "x: !!python/object/apply:os.system [id]\n")),
    Wrong("an alias bomb", PLAN, "aliases blow the file up", "without anchors", make=job(ALIASES)),
    Wrong("1000 brackets", PLAN, "nest", "brackets", make=job("x: " + "[" * 1000 + "]" * 1000)),
    Wrong("a key twice", PLAN, "is there twice", "remove one", make=job(JOB + "model: {name: gpt2}\n")),
    Wrong("two documents", PLAN, "a second document", "one document", make=job(JOB + "---\n" + JOB)),
    Wrong("a tab", PLAN, "not valid YAML", "spaces", make=job("model:\n\tname: gpt2\n")),
    Wrong("an unknown key", PLAN, "trainning is not a key", "'training'", make=job_with(("training", "trainning"))),
    Wrong("NaN", PLAN, "must be a finite number", "ordinary", make=job(JOB + "memory_headroom: .nan\n")),
    Wrong("infinity", PLAN, "must be a finite number", "ordinary", make=job(JOB + "memory_headroom: .inf\n")),
    Wrong("1e999", PLAN, "must be a finite number", "ordinary", make=job(JOB + "memory_headroom: 1e999\n")),
    Wrong("a number of 400 digits", PLAN, "a number of 400 digits", "sensible", make=job_with(("32", "9" * 400))),
    Wrong("a number of 25 digits", PLAN, "must be at most", "at most", make=job_with(("32", "9" * 25))),
    Wrong("a quoted number", PLAN, "must be a whole number", "without quotes", make=job_with(("32", '"32"'))),
    Wrong("a negative batch", PLAN, "must be at least 1", "at least 1", make=job_with(("_size: 4", "_size: -4"))),
    Wrong("extends itself", PLAN, "in a circle", "remove `extends:`", make=job("extends: job.yaml\n")),
    Wrong("extends nothing", PLAN, "there is no file", "path of a job file", make=job("extends: base.yaml\n")),
    Wrong("extends /dev/zero", PLAN, "not a regular file", "path of", make=job("extends: /dev/zero\n")),
)  # fmt: skip

MEANINGS = (
    Wrong("an unknown GPU", PLAN, "there is no GPU 'h300'", "did you mean", make=job_with(("gpu: cpu", "gpu: h300"))),
    Wrong("an unknown model", PLAN, "there is no model 'tiny-lama'", "tiny-llama", make=job_with(("tiny-llama-cpu", "tiny-lama"))),
    Wrong("an unknown cluster", PLAN, "there is no cluster", "dgx-h100", make=job_with(("gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2", "name: dgx-h10"))),
    Wrong("a batch that no layout divides", PLAN, "no", "global_batch_size", code=3, make=job_with(("size: 4", "size: 7"), ("node: 1", "node: 4"), ("trials:", "search: {tensor_parallel_size: 1, pipeline_parallel_size: 1}\ntrials:"))),
    Wrong("more stages than layers", PLAN, "", "pipeline_parallel_size", code=3, make=job_with(("nodes: 1, gpus_per_node: 1", "nodes: 8, gpus_per_node: 4"), ("_size: 4", "_size: 32"), ("trials:", "search: {pipeline_parallel_size: 32}\ntrials:"))),
    Wrong("a split that heads do not allow", PLAN, "", "tensor_parallel_size", code=3, make=job_with(("node: 1", "node: 3"), ("_size: 4", "_size: 3"), ("trials:", "search: {tensor_parallel_size: 3}\ntrials:"))),
    Wrong("a model that never fits", PLAN, "none of the", "", code=3, make=job_with(("tiny-llama-cpu", "llama-3.1-405b"))),
    Wrong("a sequence longer than its positions", PLAN, "longer than the 1024 positions", "1024", make=job_with(("tiny-llama-cpu", "gpt2"), ("32", "4096"))),
    Wrong("trials on a GPU that is not here", (*PLAN, "--trials", "real"), "cannot run on this machine", "--trials", code=4, make=job_with(("gpu: cpu", "gpu: mi300x-192gb"), (", memory_gib: 2", ""))),
    Wrong("trials on more ranks than are here", (*PLAN, "--trials", "real"), "cannot run on this machine", "--trials", code=4, make=job_with(("node: 1", "node: 64"), ("_size: 4", "_size: 64"))),
    Wrong("a token file that is not there", (*PLAN, "--trials", "real"), "there is no token file", "training.data", make=job_with(("seq_len: 32", "data: {path: tokens.bin}, seq_len: 32"))),
    Wrong("a config that is missing", PLAN, "there is no file", "model config", make=job_with(("{name: tiny-llama-cpu}", "{config: c.json}"))),
    Wrong("a config without its fields", PLAN, "has no 'hidden_size'", "add", make=config({"model_type": "llama"})),
    Wrong("a config without a type", PLAN, "has no 'model_type'", "config.json", make=config({k: v for k, v in CONFIG.items() if k != "model_type"})),
    Wrong("a config of no layers", PLAN, "num_hidden_layers", "", make=config({**CONFIG, "num_hidden_layers": 0})),
    Wrong("a config of -4 heads", PLAN, "num_attention_heads", "", make=config({**CONFIG, "num_attention_heads": -4})),
    Wrong("a config of 1e30 words", PLAN, "a whole number of absurd size", "plain numbers", make=config({**CONFIG, "vocab_size": 10**30})),
    Wrong("a config of texts", PLAN, "hidden_size", "", make=config({**CONFIG, "hidden_size": "64"})),
    Wrong("a config of heads that do not divide", PLAN, "", "", make=config({**CONFIG, "num_attention_heads": 7})),
    Wrong("a config that is a list", PLAN, "a list, not an object", "config.json", make=config([1])),
    Wrong("a config with NaN", PLAN, "NaN", "config.json", make=config(b'{"model_type": "llama", "hidden_size": NaN}')),
    Wrong("a config that is binary", PLAN, "is not UTF-8 text", "UTF-8", make=config(b"\x89PNG\r\n\x1a\n\0\0")),
    Wrong("a config that is empty", PLAN, "is empty", "", make=config(b"")),
    Wrong("a config of an unknown type", PLAN, "'warp-drive' cannot be counted", "factory:", make=config({**CONFIG, "model_type": "warp-drive"})),
    Wrong("a config nested 100000 deep", PLAN, "nested too deep", "config.json", make=config(b'{"a":' + b"[" * 100_000)),
    Wrong("a cluster file that is binary", PLAN, "is not UTF-8 text", "UTF-8", make=lambda folder: (job_with(("gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2", "file: c.yaml"))(folder), (folder / "c.yaml").write_bytes(b"\0\xff"))[0]),
)  # fmt: skip

FLAGS = (
    Wrong("--set without a value", (*PLAN, "--set", "training.seq_len"), "is not key=value", "--set training", make=job(JOB)),
    Wrong("--set of the wrong type", (*PLAN, "--set", "training.seq_len=many"), "must be a whole number", "without quotes", make=job(JOB)),
    Wrong("--set of an unknown key", (*PLAN, "--set", "trainin.seq_len=5"), "trainin is not a key", "'training'", make=job(JOB)),
    Wrong("--time-budget of words", (*PLAN, "--time-budget", "soon"), "--time-budget does not take", "90s", make=job(JOB)),
    Wrong("--time-budget of nothing", (*PLAN, "--time-budget", ""), "--time-budget does not take", "90s", make=job(JOB)),
    Wrong("--seed below zero", (*PLAN, "--seed", "-1"), "--seed", "--help", make=job(JOB)),
    Wrong("--max-trials of a word", (*PLAN, "--max-trials", "few"), "--max-trials", "--help", make=job(JOB)),
    Wrong("--trials of another kind", (*PLAN, "--trials", "rael"), "--trials does not take 'rael'", "'real'", make=job(JOB)),
    Wrong("--storage that is no URL", (*PLAN, "--trials", "real", "--storage", "here"), "is no storage URL", "sqlite:///", make=job(JOB)),
    Wrong("--storage on a server that is not there", (*PLAN, "--trials", "real", "--storage", "postgresql://u:p@127.0.0.1:9/x"), "cannot be used", "server answers", make=job(JOB)),
    Wrong("--storage without its driver", (*PLAN, "--trials", "real", "--storage", "mysql+mysqldb://u@127.0.0.1/x"), "cannot be used", "pip install", make=job(JOB)),
    Wrong("--join where there is no study", (*PLAN, "--trials", "real", "--join", "sqlite:///{}/s.db"), "no study of this job to join", "--storage", make=job(JOB)),
    Wrong("--join and --storage", (*PLAN, "--join", "a", "--storage", "b"), "both given", "one of the two", make=job(JOB)),
    Wrong("a flag that does not exist", (*PLAN, "--fast"), "has no option '--fast'", "'--set'", make=job(JOB)),
    Wrong("a verb that does not exist", ("plann", "x"), "no verb 'plann'", "'plan'"),
    Wrong("no job at all", ("plan",), "needs JOB.yaml", "--help"),
    Wrong("two jobs of one name", ("plan", "{}/job.yaml", "{}/job.yaml"), "would write the plan folder", "rename", make=job(JOB)),
    Wrong("--out that is a file", ("plan", "{}/job.yaml", "--out", "{}/job.yaml"), "is a file", "--out", make=job(JOB)),
    Wrong("--out below a file", ("plan", "{}/job.yaml", "--out", "{}/job.yaml/x"), "cannot make", "--out", make=job(JOB)),
    Wrong("--out with other things in it", ("plan", "{}/job.yaml", "--out", "{}"), "is not empty and not a plan folder", "--out", make=job(JOB)),
    Wrong("--out with a name too long", ("plan", "{}/job.yaml", "--out", "{}/" + "x" * 300), "cannot make", "shorter", make=job(JOB)),
)  # fmt: skip

ESTIMATES = (
    Wrong("no model", ("estimate", "--seq-len", "5"), "model", ""),
    Wrong("no sequence length", ("estimate", "--model", "gpt2"), "seq_len", ""),
    Wrong("an unknown model", ("estimate", "--model", "gtp2", "--seq-len", "5"), "there is no model 'gtp2'", "gpt2"),
    Wrong("an unknown GPU", (*ESTIMATE, "--gpu", "h10000"), "there is no GPU", "did you mean"),
    Wrong("ZeRO 4", (*ESTIMATE, "--zero-stage", "4"), "--zero-stage", "--help"),
    Wrong("a batch said twice", (*ESTIMATE, "--global-batch-size", "8", "--gradient-accumulation-steps", "2"), "both given", "one of the two"),
    Wrong("layers of words", (*ESTIMATE, "--activation-checkpointing", "layers:many"), "activation_checkpointing", "layers:4"),
    Wrong("a share of NaN", (*ESTIMATE, "--trainable-fraction", "nan"), "trainable", ""),
    Wrong("a share of nothing", (*ESTIMATE, "--trainable-fraction", "0"), "trainable_fraction", "more than 0"),
    Wrong("10^30 GPUs", (*ESTIMATE, "--nodes", "1" + "0" * 30), "nodes", ""),
    Wrong("rows that are missing", ("estimate", "--from", "{}/rows.jsonl"), "cannot read", "readable file"),
    Wrong("rows that are a folder", ("estimate", "--from", "{}"), "cannot read", "readable file"),
    Wrong("rows beside flags", (*ESTIMATE, "--from", "{}/job.yaml"), "has no effect beside --from", "leave", make=job(JOB)),
    Wrong("a folder without a config", ("estimate", "--model", "{}", "--seq-len", "5"), "", ""),
)  # fmt: skip

OTHERS = (
    Wrong("list of something else", ("list", "gpu"), "does not take 'gpu'", "'gpus'"),
    Wrong("verify of nothing", ("verify", "{}/none"), "there is no plan folder", "planner plan"),
    Wrong("verify of a file", ("verify", "{}/job.yaml"), "there is no plan folder", "planner plan", make=job(JOB)),
    Wrong("verify of another folder", ("verify", "{}"), "is not a plan folder", "planner plan", make=job(JOB)),
    Wrong("verify of no steps", ("verify", "{}", "--steps", "0"), "--steps", "--help"),
    Wrong("report of another folder", ("report", "{}"), "is not a plan folder", "planner plan"),
    Wrong("emit of another folder", ("emit", "{}"), "is not a plan folder", "planner plan"),
    Wrong("emit for another launcher", ("emit", "{}", "--launcher", "slrum"), "--launcher does not take", "'slurm'"),
    Wrong("a plan folder marked by garbage", ("report", "{}"), "is damaged", "--out", make=file(".meshplan.json", b"\xff\0")),
    Wrong("a plan folder of the future", ("report", "{}"), "newer planner", "newer meshplan", make=file(".meshplan.json", '{"format": 99, "job_hash": "x"}')),
    Wrong("a plan that is garbage", ("report", "{}"), "plan.yaml", "plan again", make=file("plan.yaml", "{[")),
    Wrong("a plan that is binary", ("report", "{}"), "is not text", "plan again", make=file("plan.yaml", b"\xff\xfe\0")),
    Wrong("a plan that is some YAML", ("report", "{}"), "is not a plan", "plan again", make=file("plan.yaml", "a: 1\n")),
    Wrong("a plan with an alias bomb", ("report", "{}"), "cannot be read", "plan again", make=file("plan.yaml", ALIASES)),
    Wrong("a configuration that is missing", ("check", "{}/ds.json"), "there is no file", ""),
    Wrong("a configuration that is binary", ("check", "{}/ds.json"), "is encoded in UTF-32", "UTF-8", make=file("ds.json", b"\xff\xfe\0\0")),
    Wrong("a world of no ranks", ("check", "{}/ds.json", "--world-size", "0"), "--world-size", "--help", make=file("ds.json", "{}")),
    Wrong("a consumer that is none", ("check", "{}/ds.json", "--consumer", "hugingface"), "does not take", "'huggingface'", make=file("ds.json", "{}")),
    Wrong("a log that is missing", ("diagnose", "{}/none.log"), "cannot read", "readable log file"),
    Wrong("no log at all", ("diagnose",), "needs LOG", "--help"),
    Wrong("a log beside a config that is missing", ("diagnose", "{}/a.log", "--config", "{}/ds.json"), "there is no file", "configuration", make=file("a.log", "hello")),
    Wrong("a log beside an unknown GPU", ("diagnose", "{}/a.log", "--gpu", "h300"), "there is no GPU 'h300'", "did you mean", make=file("a.log", "hello")),
    Wrong("a log beside another folder", ("diagnose", "{}/a.log", "--plan", "{}"), "is not a plan folder", "planner plan", make=file("a.log", "hello")),
)  # fmt: skip
