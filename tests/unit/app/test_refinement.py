"""The second look finds the settings that help, within the limits of one search, and leaves other jobs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.draft import Draft, estimate_candidates, search_problem
from planner.app.refinement import in_two_looks, second_look
from planner.errors import NoFeasiblePlan
from planner.search import SearchResult, run_search
from planner.space import local_axes
from planner.spec import Allocator, Candidate, CrossEntropy, Outcome, SearchRanges, TorchCompile
from planner.spec.columns import candidate_at
from tests.unit.app.builders import draft_of
from tests.unit.search.landscapes import memory_ports, outcome_of

ONE_GPU = """\
model: {name: llama-3.2-1b}
training: {seq_len: 2048, global_batch_size: 64}
cluster: {gpu: h100-sxm-80gb, nodes: 1, gpus_per_node: 1}
search: {zero_stage: [0, 2]}
trials: {max_trials: 18}
"""
GAINS = {TorchCompile.NONE: 1.0, TorchCompile.LAYER: 1.3}


class Physics:
    """The model's own figures; compiling gains more than the model says."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.tried: list[Candidate] = []

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        self.tried.append(candidate)
        (estimate,) = estimate_candidates(self._draft.job, (replace(candidate, tuning=_uncompiled(candidate)),))
        speed = estimate.tokens_per_s * GAINS[candidate.tuning.torch_compile]
        used = estimate.memory.device_used_bytes
        return outcome_of(speed, float(used), usable_bytes=estimate.memory.usable_bytes)


def _uncompiled(candidate: Candidate):  # type: ignore[no-untyped-def]
    return replace(candidate.tuning, torch_compile=TorchCompile.NONE)


def _search(draft: Draft) -> tuple[SearchResult, SearchResult | None, Physics]:
    physics = Physics(draft)
    whole = search_problem(draft, seed=1, machine="made-up")
    looks = in_two_looks(whole, draft, local_axes(draft.job))
    ports = memory_ports(physics)
    first = run_search(looks.first, ports=ports)
    problem = second_look(looks, first, whole=whole, draft=draft)
    return first, run_search(problem, ports=ports, done=first.trials) if problem is not None else None, physics


def test_second_look_finds_what_compiling_gains_within_the_limit_of_trials(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, text=ONE_GPU)
    first, second, physics = _search(draft)
    assert second is not None and first.choice is not None and second.choice is not None
    assert all(not candidate.tuning.changes for candidate in physics.tried[: len(first.trials)])
    assert second.choice.winner.candidate.tuning.torch_compile is TorchCompile.LAYER
    gained = second.choice.winner.outcome.tokens_per_s / first.choice.winner.outcome.tokens_per_s
    assert gained > 1.2
    assert len(second.trials) <= 18 and len(first.trials) <= 12
    keys = [trial.key for trial in second.trials]
    assert len(keys) == len(set(keys))


def test_second_look_same_trials_lead_to_the_same_plan(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, text=ONE_GPU)
    runs = [_search(draft)[1] for _ in range(2)]
    assert runs[0] is not None and runs[1] is not None
    assert [trial.key for trial in runs[0].trials] == [trial.key for trial in runs[1].trials]


def test_local_axes_are_those_of_gpus_that_nobody_listed(tmp_path: Path) -> None:
    job = draft_of(tmp_path, text=ONE_GPU).job
    assert [axis.name for axis in local_axes(job)] == ["torch_compile", "cross_entropy", "allocator"]
    assert [axis.name for axis in local_axes(job, compiles=False)] == ["cross_entropy", "allocator"]
    listed = replace(job.ranges, cross_entropy=(CrossEntropy.CHUNKED,), allocator=(Allocator.DEFAULT,))
    assert [axis.name for axis in local_axes(replace(job, ranges=listed))] == ["torch_compile"]
    own = replace(job, launch=replace(job.launch, environment=(("PYTORCH_CUDA_ALLOC_CONF", "x:1"),)))
    assert "allocator" not in [axis.name for axis in local_axes(own)]
    assert not local_axes(replace(job, launch=replace(job.launch, command="t.py {deepspeed_config}")))
    assert not local_axes(draft_of(tmp_path).job)  # on CPU


def test_no_second_look_where_nothing_is_varied_or_nothing_was_tried(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    problem = search_problem(draft, seed=1, machine="m")
    looks = in_two_looks(problem, draft, local_axes(draft.job))
    assert looks.first is problem
    nothing = SearchResult(trials=(), choice=None, stopped_because="", num_untried=1, num_pruned=0)
    assert second_look(looks, nothing, whole=problem, draft=draft) is None


@pytest.mark.parametrize("ranges", [SearchRanges(), SearchRanges(tensor_parallel_size=(1, 2))])
def test_first_look_holds_the_defaults_only_and_names_all_parameters(tmp_path: Path, ranges: SearchRanges) -> None:
    draft = draft_of(tmp_path, text=ONE_GPU.replace("gpus_per_node: 1", "gpus_per_node: 4"))
    problem = search_problem(draft, seed=1, machine="m")
    looks = in_two_looks(problem, draft, local_axes(draft.job))
    assert not looks.first.columns.tuning.any()
    assert looks.first.legal is not None
    found = {
        candidate_at(looks.first.legal, row, num_layers=draft.job.model.num_layers).tuning
        for row in range(len(draft.columns), len(looks.first.legal))
    }
    assert {tuning.torch_compile for tuning in found} == {TorchCompile.NONE, TorchCompile.LAYER}


def test_states_are_offloaded_only_where_nothing_fits_without(tmp_path: Path) -> None:
    small = ONE_GPU.replace("h100-sxm-80gb", "rtx4090-24gb").replace("llama-3.2-1b", "llama-3.2-3b")
    ample = ("search.zero_stage=[0, 1, 2, 3]", "cluster.host_memory_gib=256")
    draft = draft_of(tmp_path, *ample, text=small)
    offloaded = draft.columns.offload_optimizer[draft.order[0]]
    assert "host memory" in draft.note and offloaded
    assert not draft_of(tmp_path, text=ONE_GPU).columns.offload_optimizer.any()
    with pytest.raises(NoFeasiblePlan):
        draft_of(tmp_path, "search.offload_optimizer=none", *ample, text=small)
    with pytest.raises(NoFeasiblePlan):  # nor into the host's memory
        draft_of(tmp_path, ample[0], "cluster.host_memory_gib=16", text=small)
