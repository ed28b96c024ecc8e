"""An emulated trial said of another cluster: what ranks did stays, what they sent is priced anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog import load_link
from planner.spec import (
    BatchSplit,
    Candidate,
    CollectiveCount,
    CollectiveKind,
    EmulationReport,
    JobSpec,
    Measured,
    Phase,
    Provenance,
)
from planner.trial.carried import same_rank_work, with_other_network
from planner.trial.emulated import Basis, emulated_outcome, emulated_roles
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job
from tests.unit.trial.samples import make_report

MIB = 1 << 20


def candidate_of(*, data: int, accumulation: int, zero: int = 0, tensor: int = 1, pipeline: int = 1) -> Candidate:
    candidate = make_candidate(data=data, tensor=tensor, pipeline=pipeline)
    batch = BatchSplit(micro_batch_size=2, gradient_accumulation_steps=accumulation, data_parallel_size=data)
    return replace(candidate, batch=batch, zero_stage=zero)


def job_of(candidate: Candidate, *, link: str = "infiniband-ndr") -> JobSpec:
    """A job whose nodes hold two GPUs, so that data-parallel ranks talk over the network."""
    job = make_job()
    world = candidate.layout.world_size
    cluster = replace(
        job.cluster, nodes=max(1, world // 2), gpus_per_node=min(2, world), inter_node_link=load_link(link)
    )
    training = replace(job.training, global_batch_size=candidate.batch.global_batch_size)
    return replace(job, cluster=cluster, training=training)


def emulated(candidate: Candidate, job: JobSpec, *, compute_scale: float = 1.0) -> Measured:
    """What the roles of a candidate add up to: each computes a second a micro-batch and sums its gradients once."""
    layout = candidate.layout
    roles = emulated_roles(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION, memory_limit_bytes=1 << 30, steps=3)
    measured = []
    for role in roles:
        first = role.rank // layout.tensor_parallel_size * layout.tensor_parallel_size
        group = tuple(first + data * layout.tensor_parallel_size for data in range(layout.data_parallel_size))
        sends = CollectiveCount(
            kind=CollectiveKind.ALL_REDUCE,
            dtype="bfloat16",
            num_bytes=512 * MIB,
            group=0,
            phase=Phase.OPTIMIZER_STEP,
            count=1,
            each_micro_batch=False,
        )
        report = EmulationReport(
            rank=role.rank,
            world_size=layout.world_size,
            micro_batches=2,
            micro_batch_s=1.0 + role.rank / 100,
            step_end_s=0.25,
            own_s=0.0,
            groups=(group,),
            collectives=(sends,),
        )
        ran = replace(make_report(0), emulation=report)
        measured.append((role, Measured(step_time_s=2.0, step_time_spread_s=0.0, tokens_per_s=1.0, ranks=(ran,))))
    basis = Basis(compute_scale=compute_scale, step_end_scale=compute_scale)
    return emulated_outcome(measured, candidate=candidate, job=job, basis=basis)


WIDE = candidate_of(data=8, accumulation=4)
NARROW = candidate_of(data=4, accumulation=8)
STAGED = candidate_of(data=2, accumulation=16, zero=1, pipeline=4)
SPLIT = candidate_of(data=2, accumulation=16, tensor=2)


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize(
    "candidate",
    [WIDE, candidate_of(data=2, accumulation=16, zero=1, pipeline=4), candidate_of(data=2, accumulation=16, tensor=2)],
)
def test_on_the_same_cluster_nothing_changes(candidate: Candidate, scale: float) -> None:
    job = job_of(candidate)
    before = emulated(candidate, job, compute_scale=scale)
    after = with_other_network(before, old=candidate, new=candidate, job=job)
    assert after.step_time_s == pytest.approx(before.step_time_s)
    assert after.ranks == before.ranks
    assert after.tokens_per_s == pytest.approx(before.tokens_per_s)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_at_another_data_parallel_size_it_is_what_emulating_there_would_say(scale: float) -> None:
    job = job_of(NARROW)
    carried = with_other_network(emulated(WIDE, job_of(WIDE), compute_scale=scale), old=WIDE, new=NARROW, job=job)
    there = emulated(NARROW, job, compute_scale=scale)
    assert carried.step_time_s == pytest.approx(there.step_time_s)
    assert carried.ranks[0].emulation == there.ranks[0].emulation
    assert carried.kind is Provenance.EMULATED


def test_over_a_slower_link_only_communication_takes_longer() -> None:
    before = emulated(WIDE, job_of(WIDE))
    after = with_other_network(before, old=WIDE, new=WIDE, job=job_of(WIDE, link="ethernet-25g"))
    assert before.breakdown is not None
    assert after.breakdown is not None
    assert after.breakdown.data_parallel_s > 2 * before.breakdown.data_parallel_s
    assert after.breakdown.compute_s == before.breakdown.compute_s
    assert after.breakdown.optimizer_s == before.breakdown.optimizer_s


def test_ranks_do_the_same_work_only_without_zero_and_with_the_same_split() -> None:
    assert same_rank_work(WIDE, WIDE)
    assert same_rank_work(WIDE, NARROW)
    assert not same_rank_work(WIDE, candidate_of(data=1, accumulation=32))
    assert not same_rank_work(WIDE, candidate_of(data=4, accumulation=4, tensor=2))
    assert not same_rank_work(*(replace(one, zero_stage=1) for one in (WIDE, NARROW)))
    assert not same_rank_work(WIDE, replace(NARROW, zero_stage=1))
    few = candidate_of(data=16, accumulation=1)
    assert not same_rank_work(WIDE, few)  # memory of one micro-batch without accumulated gradients
