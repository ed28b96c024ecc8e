"""Sweeps that were really run (tests/data/sweeps), as search problems: the cost model's prior, the published
outcome."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from planner.catalog import load_gpu, model_from_config, usual_node
from planner.cost import MEGATRON, estimate_columns
from planner.search import Priors, SearchProblem
from planner.spec import Candidate, ClusterSpec, Crashed, Outcome, Phase, Precision, TrainingSpec, TrialPolicy
from planner.spec._record import record
from planner.spec.columns import PRECISIONS, CandidateColumns, FloatColumn
from tests.unit.search.landscapes import find_row, outcome_of

_FILE = Path(__file__).parents[2] / "data" / "sweeps" / "ultrascale.csv"
_HEADROOM = 0.05
TRIALS_FRACTION = 0.15  # of the sweep's candidates, what a search may try


@record
class Sweep:
    """One model on one number of GPUs. `tokens_per_s` is 0 where the run failed (for a reason not given)."""

    name: str
    columns: CandidateColumns
    priors: Priors
    usable_bytes: int
    tokens_per_s: FloatColumn
    memory_bytes: FloatColumn

    @property
    def num_trials(self) -> int:
        return int(TRIALS_FRACTION * len(self.columns))

    @property
    def best_tokens_per_s(self) -> float:
        keeps = self.memory_bytes <= (1 - _HEADROOM) * self.usable_bytes
        return float(np.max(np.where(keeps, self.tokens_per_s, 0.0)))

    def problem(self, *, seed: int, sampler: str = "guided", early_end: bool = False) -> SearchProblem:
        """The search of this sweep with the allowed number of trials."""
        return SearchProblem(
            columns=self.columns,
            priors=self.priors,
            policy=TrialPolicy(max_trials=self.num_trials, time_budget_s=1e12, sampler=sampler),
            seed=seed,
            usable_bytes=self.usable_bytes,
            memory_headroom_fraction=_HEADROOM,
            machine="made-up",
            early_end=early_end,
        )

    def regret(self, candidate: Candidate) -> float:
        """By what share the candidate is slower than the best of the sweep."""
        return 1.0 - float(self.tokens_per_s[find_row(self.columns, candidate)]) / self.best_tokens_per_s

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """What the playbook published for this candidate."""
        row = find_row(self.columns, candidate)
        speed = float(self.tokens_per_s[row])
        if not speed:
            return Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message="no cause given", log_tail="")
        return outcome_of(speed, float(self.memory_bytes[row]), usable_bytes=self.usable_bytes)


@cache
def load_sweeps() -> tuple[Sweep, ...]:
    """All sweeps of the file, in its order."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with _FILE.open(newline="") as file:
        for cells in csv.DictReader(file):
            groups[cells["model_name"], cells["n_gpus"]].append(cells)
    return tuple(_sweep(f"{model} on {gpus} GPUs", rows) for (model, gpus), rows in groups.items())


def _sweep(name: str, rows: list[dict[str, str]]) -> Sweep:
    columns = _columns(rows)
    world = int(rows[0]["n_gpus"])
    gpu = load_gpu("h100-sxm-80gb")
    return Sweep(
        name=name,
        columns=columns,
        priors=_priors(columns, rows[0]),
        usable_bytes=gpu.memory_usable_bytes,
        tokens_per_s=np.array([float(cells["tokens_per_s_per_gpu"] or 0) * world for cells in rows]),
        memory_bytes=np.array([float(cells["peak_mem_gb"] or 0) * 1e9 for cells in rows]),
    )


def _columns(rows: list[dict[str, str]]) -> CandidateColumns:
    def ints(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([int(cells[name]) for cells in rows], dtype=np.int64)

    ones = np.ones(len(rows), dtype=np.int64)
    return CandidateColumns(
        nodes=np.maximum(ints("n_gpus") // 8, 1),
        data_parallel_size=ints("dp"),
        tensor_parallel_size=ints("tp"),
        pipeline_parallel_size=ints("pp"),
        sequence_parallel_size=ones,
        expert_parallel_size=ones,
        virtual_pipeline_size=ones,
        tensor_sequence_parallel=np.zeros(len(rows), dtype=np.bool_),
        micro_batch_size=ints("micro_batch"),
        gradient_accumulation_steps=ints("grad_accum"),
        zero_stage=ints("zero_stage"),
        precision=ones * PRECISIONS.index(Precision.BF16),
        checkpointed_layers=0 * ones,
        attention=ones,
        offload_optimizer=0 * ones,
        offload_param=0 * ones,
        tuning=0 * ones,
    )


def _priors(columns: CandidateColumns, cells: dict[str, str]) -> Priors:
    config = {
        "model_type": "llama",
        "hidden_size": int(cells["hidden"]),
        "num_hidden_layers": int(cells["layers"]),
        "num_attention_heads": int(cells["heads"]),
        "num_key_value_heads": int(cells["kv_heads"]),
        "intermediate_size": int(cells["ffn"]),
        "vocab_size": int(cells["vocab"]),
        "max_position_embeddings": int(cells["seq_len"]),
        "tie_word_embeddings": True,
    }
    usual = usual_node("h100-sxm-80gb")
    cluster = ClusterSpec(
        gpu=load_gpu("h100-sxm-80gb"),
        nodes=int(columns.nodes[0]),
        gpus_per_node=8,
        intra_node_link=usual.intra_node_link,
        inter_node_link=usual.inter_node_link,
        host_memory_bytes=2 * 2**40,
    )
    estimates = estimate_columns(
        replace(columns, tensor_sequence_parallel=columns.tensor_parallel_size > 1),
        model=model_from_config(config, cells["model_name"]),
        training=TrainingSpec(seq_len=int(cells["seq_len"]), global_batch_size=int(cells["global_batch"])),
        cluster=cluster,
        profile=MEGATRON,
    )
    return Priors(
        tokens_per_s=estimates.tokens_per_s.astype(np.float64),
        step_time_s=estimates.step_time_s.astype(np.float64),
        memory_bytes=estimates.device_used_bytes.astype(np.float64),
        low_bytes=estimates.low_bytes.astype(np.float64),
        high_bytes=estimates.high_bytes.astype(np.float64),
        fits=estimates.fits,
    )
