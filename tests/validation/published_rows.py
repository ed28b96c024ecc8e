"""Published measurements (tests/data/published), each beside its estimate.

Owns how a row of those files becomes a candidate. What a source does not say is filled as its framework had it: eager
attention on V100 and in Megatron code of 2021, fp16 where no precision is given, GPT's feed-forward of 4h.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from planner.catalog import load_gpu, model_from_config, usual_node
from planner.cost import FSDP, MEGATRON, RuntimeProfile, estimate_columns
from planner.spec import ClusterSpec, Estimate, GpuSpec, ModelSpec, TrainingSpec
from planner.spec._record import record
from planner.spec.columns import CandidateColumns
from tests.unit.cost.samples import columns

FOLDER = Path(__file__).parent.parent / "data" / "published"

Cells: TypeAlias = dict[str, str]

_GPUS = {
    "B200-SXM": "b200-sxm-180gb",
    "A100-80GB-PCIe": "a100-pcie-80gb",
    "V100-32GB": "v100-sxm-32gb",
    "V100-16GB": "v100-sxm-16gb",
    "A100-80GB": "a100-sxm-80gb",
    "A100-40GB": "a100-sxm-40gb",
    "A100": "a100-sxm-80gb",
    "A800-80GB": "a100-sxm-80gb",
    "H100-80GB": "h100-sxm-80gb",
}
_LLAMA_LIKE = ("llama", "internlm")
_OLD_MEGATRON = ("vtrain_measured", "bigscience_bloom")  # no flash attention, activations not split by sequence
_INTERNLM = {"ffn": "11008", "vocab": "103168"}  # InternLM-7B's card; the source gives only hidden size and layers


@record
class PublishedRow:
    """A row that names a whole configuration. 0: the source gives no such figure."""

    name: str
    step_time_s: float
    allocated_bytes: int
    estimate: Estimate

    @property
    def time_error(self) -> float:
        return self.estimate.step_time_s / self.step_time_s - 1

    @property
    def allocated_error(self) -> float:
        return self.estimate.memory.allocated_bytes / self.allocated_bytes - 1


@cache
def rows(source: str) -> tuple[PublishedRow, ...]:
    """The usable rows of one file, in order."""
    with (FOLDER / f"{source}.csv").open(newline="") as file:
        asked = [_row(cells, source) for cells in csv.DictReader(file)]
    return tuple(row for row in asked if row is not None)


def _row(cells: Cells, source: str) -> PublishedRow | None:
    if cells["result"] != "ok" or "SUSPECT" in cells["notes"] or "CONFLICT" in cells["notes"]:
        return None
    model, sizes = _model(cells), _sizes(cells)
    gpu = _GPUS.get(cells["gpu"])
    if model is None or sizes is None or gpu is None or sizes["pipeline_parallel_size"] > model.num_layers:
        return None
    estimate = _estimate(cells, source, model, sizes)
    return PublishedRow(
        name=f"{source} {cells['model_name']} {cells['gpu']} x{cells['n_gpus']} tp{cells['tp']} pp{cells['pp']}",
        step_time_s=_step_time(cells, sizes),
        allocated_bytes=_allocated(cells),
        estimate=estimate,
    )


def _number(cells: Cells, name: str, default: int = 0) -> int:
    text = cells.get(name, "")
    return int(float(text)) if re.fullmatch(r"[0-9.]+", text) else default


def _model(cells: Cells) -> ModelSpec | None:
    """Llama-like models by name, the others as GPT; mixtures of experts are left out."""
    name = cells["model_name"].lower()
    filled = cells | (_INTERNLM if "internlm" in name else {})
    hidden, layers, heads = (_number(filled, key) for key in ("hidden", "layers", "heads"))
    if not (hidden and layers and heads) or _number(filled, "ep", 1) > 1 or "deepseek" in name:
        return None
    ffn, vocab = _number(filled, "ffn", 4 * hidden), _number(filled, "vocab", 51_200)
    if any(word in name for word in _LLAMA_LIKE):
        config = {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": _number(filled, "kv_heads", heads),
            "intermediate_size": ffn,
            "vocab_size": vocab,
            "max_position_embeddings": 1 << 20,
        }
        return model_from_config(config, name)
    dropout = 0.0 if "mpt" in name else 0.1
    config = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": ffn,
        "vocab_size": vocab,
        "n_positions": _number(filled, "seq_len", 2048),
        "resid_pdrop": dropout,
        "attn_pdrop": dropout,
    }
    return model_from_config(config, name)


def _sizes(cells: Cells) -> dict[str, int] | None:
    """Degrees and batch, completed; None where they are not all said or contradict the number of GPUs."""
    gpus, micro_batch = _number(cells, "n_gpus"), _number(cells, "micro_batch")
    tensor, pipeline, context = (_number(cells, name, 1) or 1 for name in ("tp", "pp", "cp"))
    data = _number(cells, "dp") or gpus // (tensor * pipeline * context)
    if not data or not micro_batch or not _number(cells, "seq_len") or data * tensor * pipeline * context != gpus:
        return None
    accumulation = _number(cells, "grad_accum") or _number(cells, "global_batch") // (micro_batch * data)
    if accumulation < 1:
        return None
    return {
        "data_parallel_size": data,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "sequence_parallel_size": context,
        "virtual_pipeline_size": _number(cells, "vpp", 1) or 1,
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation,
    }


def _candidate(cells: Cells, source: str, sizes: dict[str, int]) -> CandidateColumns:
    zero, checkpointing, precision = cells["zero_stage"], cells["act_ckpt"], cells["precision"]
    stage = (
        3 if "FULL" in zero or zero.startswith("3") else 2 if "GRAD_OP" in zero else 1 if zero.startswith("1") else 0
    )
    kind = "full" if checkpointing.startswith("full") else "selective" if checkpointing.startswith("sel") else "none"
    no_flash = "no flash" in cells["attention_impl"] or source in _OLD_MEGATRON
    old_papers = source == "megatron_papers_and_llama3" and cells["gpu"].startswith("A100")
    splits_sequence = source not in _OLD_MEGATRON and (not old_papers or "sequence parallel" in checkpointing)
    return columns(
        **sizes,
        zero_stage=stage,
        checkpointing=kind,
        precision="fp8" if "fp8" in precision else "bf16" if "bf16" in precision else "fp16",
        attention="eager" if no_flash or old_papers or cells["gpu"].startswith("V100") else "sdpa",
        tensor_sequence_parallel=splits_sequence,
    )


def _profile(cells: Cells) -> RuntimeProfile:
    if "foundry" in cells["framework"].lower() or "FSDP" in cells["zero_stage"]:
        return FSDP
    return replace(MEGATRON, fused_cross_entropy="fused cross-entropy ('cef')" in cells["notes"])


def _estimate(cells: Cells, source: str, model: ModelSpec, sizes: dict[str, int]) -> Estimate:
    gpu: GpuSpec = load_gpu(_GPUS[cells["gpu"]])
    usual = usual_node(_GPUS[cells["gpu"]])
    nodes = _number(cells, "n_nodes") or max(_number(cells, "n_gpus") // 8, 1)
    cluster = ClusterSpec(
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=max(_number(cells, "n_gpus") // nodes, 1),
        intra_node_link=usual.intra_node_link,
        inter_node_link=usual.inter_node_link,
        host_memory_bytes=4 * 2**40,
    )
    return estimate_columns(
        _candidate(cells, source, sizes),
        model=model,
        training=TrainingSpec(seq_len=_number(cells, "seq_len"), global_batch_size=1),
        cluster=cluster,
        profile=_profile(cells),
    ).record_at(0)


def _step_time(cells: Cells, sizes: dict[str, int]) -> float:
    """As printed, or from tokens per second and GPU."""
    if cells["step_time_s"]:
        return float(cells["step_time_s"])
    if not cells["tokens_per_s_per_gpu"]:
        return 0.0
    sequences = sizes["micro_batch_size"] * sizes["gradient_accumulation_steps"] * sizes["data_parallel_size"]
    per_gpu = sequences * _number(cells, "seq_len") / _number(cells, "n_gpus")
    return per_gpu / float(cells["tokens_per_s_per_gpu"])


def _allocated(cells: Cells) -> int:
    """Only where the source says that it is torch's max_memory_allocated."""
    found = re.search(r"max_memory_allocated ([\d.]+) GiB", cells["notes"])
    return int(float(found.group(1)) * 2**30) if found else 0
