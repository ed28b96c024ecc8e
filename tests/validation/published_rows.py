"""Published measurements (tests/data/published), each beside what `planner estimate` answers for it.

Owns how a row of those files becomes a row of `planner estimate --from`: what the source says, nothing more. What it
leaves out takes the estimate's own defaults. Only two things are known of a whole source rather than of a row: which
runtimes are Megatron-like (interface: `--runtime`), and that Megatron of 2021 did not split activations by sequence.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from planner.app.estimate import estimate_questions
from planner.app.estimate_row import read_row
from planner.spec import Estimate, Provenance
from planner.spec._record import record
from planner.spec.codec import from_plain
from planner.spec.estimate import MemoryEstimate, TimeBreakdown

FOLDER = Path(__file__).parent.parent / "data" / "published"

Cells: TypeAlias = dict[str, str]

_GPUS = {
    "B200-SXM": "b200-sxm-180gb",
    "A100-80GB-PCIe": "a100-pcie-80gb",
    "V100-32GB": "v100-sxm-32gb",
    "V100-16GB": "v100-sxm-16gb",
    "V100": "v100-sxm-32gb",  # sixteen in a node: a DGX-2
    "A100-80GB": "a100-sxm-80gb",
    "A100-40GB": "a100-sxm-40gb",
    "A100": "a100-sxm-80gb",
    "A800-80GB": "a100-sxm-80gb",
    "H100-80GB": "h100-sxm-80gb",
}
_UNSPLIT_SEQUENCE = ("vtrain_measured", "bigscience_bloom")
_LEFT_OUT = ("SUSPECT", "CONFLICT", "PER-STAGE")  # a per-stage row is not about the worst rank
# What `peak_mem_gb` counts, where the source says so (its README): torch's allocated bytes, or the whole device's.
_COUNTERS = {
    "simumax": "allocated",
    "nvidia_bridge_memory_studies": "allocated",
    "bigscience_bloom": "device_used",
    "ultrascale_runs": "allocated",  # not stated; its rows without pipelines agree with allocated bytes to 5 %
}


@record
class PublishedRow:
    """A row that names a whole configuration, with its estimate. 0: the source gives no such figure.

    `sweep`: rows of one sweep share model, devices and sequence. `peer_*`: the source's own prediction of the run.
    """

    name: str
    sweep: str
    model: str
    runtime: str
    step_time_s: float
    memory_bytes: float
    counter: str
    estimated_time_s: float
    estimated_bytes: float
    estimate: Estimate
    peer_time_s: float
    peer_bytes: float

    @property
    def time_error(self) -> float:
        return self.estimated_time_s / self.step_time_s - 1

    @property
    def memory_error(self) -> float:
        return self.estimated_bytes / self.memory_bytes - 1


@cache
def cells_of(source: str) -> tuple[Cells, ...]:
    """The rows of one file that ran and are not marked as doubtful."""
    with (FOLDER / f"{source}.csv").open(newline="") as file:
        rows = tuple(csv.DictReader(file))
    return tuple(cells for cells in rows if cells["result"] == "ok" and not any(w in cells["notes"] for w in _LEFT_OUT))


@cache
def rows(source: str) -> tuple[PublishedRow, ...]:
    """The usable rows of one file, in order: those that name a whole configuration which the estimate finds legal."""
    asked = [(cells, row) for cells in cells_of(source) if (row := estimate_row(cells, source)) is not None]
    answers = estimate_questions([read_row(row) for _, row in asked])
    return tuple(
        _published(cells, row, answer, source) for (cells, row), answer in zip(asked, answers) if answer["feasible"]
    )


def _published(cells: Cells, row: dict[str, Any], answer: dict[str, Any], source: str) -> PublishedRow:
    counter = _COUNTERS.get(source, "")
    peer = re.search(r"own prediction for this row: ([\d.]+) ms, ([\d.]+) GiB", cells["notes"])
    layout = f"x{cells['n_gpus']} tp{cells['tp']} pp{cells['pp']} mb{cells['micro_batch']}"
    return PublishedRow(
        name=f"{cells['model_name']} {cells['gpu']} {layout}",
        sweep=f"{cells['model_name']} {cells['gpu']} {cells['n_gpus']} {cells['seq_len']}",
        model=cells["model_name"],
        runtime=row["runtime"],
        step_time_s=_step_time(cells, row),
        memory_bytes=_memory(cells, counter),
        counter=counter,
        estimated_time_s=answer["step_time_s"],
        estimated_bytes=float(answer["memory"][f"{counter}_bytes"]) if counter else 0.0,
        estimate=_record(answer),
        peer_time_s=float(peer.group(1)) / 1e3 if peer else 0.0,
        peer_bytes=float(peer.group(2)) * 2**30 if peer else 0.0,
    )


def _record(answer: dict[str, Any]) -> Estimate:
    """The estimate that an answer was made from."""
    return Estimate(
        memory=from_plain(MemoryEstimate, answer["memory"]),
        time=from_plain(TimeBreakdown, answer["time_breakdown"]),
        step_time_s=answer["step_time_s"],
        tokens_per_s=answer["tokens_per_s"],
        tokens_per_s_per_gpu=answer["tokens_per_s_per_gpu"],
        mfu_fraction=answer["mfu"],
        fits=answer["fits"],
        kind=Provenance(answer["kind"]),
    )


def estimate_row(cells: Cells, source: str) -> dict[str, Any] | None:
    """The row of `planner estimate --from`; None where the source does not name a whole configuration."""
    model, sizes, gpu = _model(cells), _sizes(cells), _GPUS.get(cells["gpu"])
    if model is None or sizes is None or gpu is None:
        return None
    row: dict[str, Any] = {"model": model, "gpu": gpu, "runtime": _runtime(cells), **sizes, **_words(cells)}
    nodes = _number(cells, "n_nodes")
    if nodes and sizes["world_size"] % nodes == 0:
        row |= {"nodes": nodes, "gpus_per_node": sizes["world_size"] // nodes}
    by_sequence = "sequence parallel" in cells["act_ckpt"]
    old_paper = source == "megatron_papers_and_llama3" and cells["gpu"].startswith("A100")
    if (source in _UNSPLIT_SEQUENCE or old_paper) and not by_sequence:
        row["tensor_sequence_parallel"] = False
    return row


def _number(cells: Cells, name: str) -> int:
    text = cells.get(name, "")
    return int(float(text)) if re.fullmatch(r"[0-9.]+", text) else 0


def _model(cells: Cells) -> dict[str, Any] | None:
    """An inline config of the shape as printed; mixtures of experts are left out: no file counts their experts."""
    names = {
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
    }
    config: dict[str, Any] = {key: _number(cells, column) for column, key in names.items() if _number(cells, column)}
    name = cells["model_name"].lower()
    if "DDP" in cells["zero_stage"]:  # torch's own, the baseline of a DeepSpeed page
        return None
    if any(key not in config for key in list(names.values())[:3]) or _number(cells, "ep") > 1 or "deepseek" in name:
        return None
    if cells["framework"].startswith("HF Trainer") and name.startswith(("gpt2", "bert", "distilbert")):
        return _hugging_face(name, config)
    if "llama" in name and "intermediate_size" in config and "vocab_size" in config:
        config["model_type"] = "llama"
        config["tie_word_embeddings"] = "tied embeddings" in cells["notes"] and "untied" not in cells["notes"]
    return config


def _hugging_face(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The model that the name is: GPT-2, or BERT under a classifier (GLUE), as transformers configures them."""
    if not name.startswith("gpt2"):
        positions = {"max_position_embeddings": 512, "architectures": ["BertForSequenceClassification"]}
        return {**config, **positions, "model_type": "bert"}
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    shape = {ours: config[theirs] for ours, theirs in names.items()}
    return {**shape, "vocab_size": config.get("vocab_size", 50257), "n_positions": 1024, "model_type": "gpt2"}


def _sizes(cells: Cells) -> dict[str, int] | None:
    """Degrees and batch, completed; None where they are not all said or contradict the number of GPUs."""
    gpus, micro_batch, seq_len = (_number(cells, name) for name in ("n_gpus", "micro_batch", "seq_len"))
    tensor, pipeline, context = (_number(cells, name) or 1 for name in ("tp", "pp", "cp"))
    data = _number(cells, "dp") or gpus // (tensor * pipeline * context)
    if not data or not micro_batch or not seq_len or data * tensor * pipeline * context != gpus:
        return None
    accumulation = _number(cells, "grad_accum") or _number(cells, "global_batch") // (micro_batch * data)
    if accumulation < 1:
        return None
    return {
        "world_size": gpus,
        "seq_len": seq_len,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "sequence_parallel_size": context,
        "virtual_pipeline_size": _number(cells, "vpp") or 1,
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation,
    }


def _runtime(cells: Cells) -> str:
    framework = cells["framework"].lower()
    if any(name in framework for name in ("megatron", "nanotron", "internevo")):
        return "megatron"
    is_fsdp = any(name in framework for name in ("foundry", "torchtune", "torchtitan", "fsdp"))
    return "fsdp" if is_fsdp or "FSDP" in cells["zero_stage"] else "deepspeed"


def _words(cells: Cells) -> dict[str, Any]:
    """ZeRO stage, checkpointing, precision and kernel, each only where the source says it."""
    zero, checkpointing, precision = cells["zero_stage"], cells["act_ckpt"], cells["precision"]
    kernel = cells["attention_impl"].lower()
    said: dict[str, Any] = {}
    if "FULL" in zero or "ZeRO-3" in zero or zero[:1].isdecimal() or "GRAD_OP" in zero:
        said["zero_stage"] = int(zero[0]) if zero[0].isdecimal() else 2 if "GRAD_OP" in zero else 3
    if checkpointing.startswith(("full", "sel")):
        said["activation_checkpointing"] = "full" if checkpointing.startswith("full") else "selective"
    named = next((word for word in ("fp8", "bf16", "fp16", "fp32") if word in precision), None)
    if named:
        said["precision"] = named
    early = cells["framework"].startswith("HF Trainer") and cells["gpu"].startswith("V100")
    if "no flash" in kernel or "classic" in kernel or early:  # transformers of 2021 and 2022 had no other
        said["attention"] = "eager"
    elif "flash" in kernel:
        said["attention"] = "flash"
    offload = cells["offload"].lower()
    if "cpu" in offload:
        both = "cpu offload" in offload  # "full cpu offload", "cpu offload": of parameters and optimizer
        said |= {"offload_optimizer": "cpu"} if both or "optimizer" in offload else {}
        said |= {"offload_param": "cpu"} if both or "param" in offload else {}
    if "compile" in cells["framework"]:
        said["torch_compile"] = True
    return said


def _step_time(cells: Cells, row: dict[str, Any]) -> float:
    """As printed, or from tokens per second and GPU; 0 for runs that their own source shows to be broken."""
    if "MFU under 1%" in cells["notes"]:
        return 0.0
    if cells["step_time_s"]:
        return float(cells["step_time_s"])
    if not cells["tokens_per_s_per_gpu"]:
        return 0.0
    split = row["tensor_parallel_size"] * row["pipeline_parallel_size"] * row["sequence_parallel_size"]
    sequences = row["micro_batch_size"] * row["gradient_accumulation_steps"] / split
    return float(sequences * row["seq_len"] / float(cells["tokens_per_s_per_gpu"]))


def _memory(cells: Cells, counter: str) -> float:
    """Bytes, where it is known what was counted."""
    allocated = re.search(r"max_memory_allocated ([\d.]+) GiB", cells["notes"])
    if allocated:
        return float(allocated.group(1)) * 2**30
    return float(cells["peak_mem_gb"]) * 1e9 if counter and cells["peak_mem_gb"] else 0.0
