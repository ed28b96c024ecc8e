"""Which trials of an old plan hold on another cluster, what the others still teach, what the old plan is worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.changes import Surroundings, find_changes
from planner.app.earlier import OldPlan, carried_words, prior_calibration, sort_trials, transferred
from planner.app.old_plan import judge_old_plan
from planner.catalog import load_link
from planner.cost import Calibration
from planner.spec import DeviceKind, JobSpec, OutOfMemory, Phase, Provenance, TrialRecord
from planner.spec.replan import Change, ChangeKind
from tests.unit.app.builders import GIB, SMALL, candidates_of, draft_of, ran, trial
from tests.unit.jobfile.jobs import job_of

NO_MEMORY = OutOfMemory(
    rank=0, phase=Phase.FORWARD, requested_bytes=GIB, allocated_bytes=GIB, capacity_bytes=2 * GIB, log_tail=""
)


@pytest.fixture(name="old")
def old_fixture(tmp_path: Path) -> OldPlan:
    """Three measured trials on two CPU ranks and one that ran out of memory."""
    draft = draft_of(tmp_path)
    candidates = candidates_of(draft)
    ends = (ran(0.2), ran(0.3), ran(0.4), NO_MEMORY)
    trials = tuple(trial(number, one, end) for number, (one, end) in enumerate(zip(candidates, ends)))
    around = Surroundings(cluster=draft.job.cluster, versions=(("torch", "2.13.0"),), machine="m")
    return OldPlan(job=draft.job, trials=trials, surroundings=around)


def kept_on(old: OldPlan, job: JobSpec, *, machine: str = "m") -> tuple[tuple[TrialRecord, ...], tuple[Change, ...]]:
    changes = find_changes(old.surroundings, replace(old.surroundings, cluster=job.cluster, machine=machine))
    found = sort_trials(old, job, machine=machine, changes=changes)
    assert len(found.kept) + len(found.others) == len(old.trials)
    return found.kept, changes


def test_on_the_same_cluster_every_trial_holds_as_it_is(old: OldPlan) -> None:
    assert kept_on(old, old.job) == (old.trials, ())


@pytest.mark.parametrize("override", ["cluster.gpus_per_node=1", "cluster.gpus_per_node=4"])
def test_of_another_number_of_ranks_no_real_trial_holds(old: OldPlan, tmp_path: Path, override: str) -> None:
    kept, _ = kept_on(old, job_of(tmp_path, SMALL, override))
    assert kept == ()


def test_of_another_machine_or_other_software_none_holds(old: OldPlan) -> None:
    assert kept_on(old, old.job, machine="other")[0] == ()


def test_over_another_link_none_holds(old: OldPlan) -> None:
    cluster = replace(old.job.cluster, intra_node_link=load_link("ethernet-25g"))
    kept, changes = kept_on(old, replace(old.job, cluster=cluster))
    assert [change.kind for change in changes] == [ChangeKind.INTRA_NODE_LINK]
    assert kept == ()


def test_running_out_of_memory_says_nothing_where_there_is_more(old: OldPlan, tmp_path: Path) -> None:
    more, _ = kept_on(old, job_of(tmp_path, SMALL, "cluster.memory_gib=4"))
    less, _ = kept_on(old, job_of(tmp_path, SMALL, "cluster.memory_gib=1"))
    assert [one.number for one in more] == [0, 1, 2]
    assert [one.number for one in less] == [0, 1, 2, 3]


def test_a_candidate_the_new_job_does_not_hold_is_no_trial_of_it(old: OldPlan, tmp_path: Path) -> None:
    kept, _ = kept_on(old, job_of(tmp_path, SMALL, "search.micro_batch_size=[4, 8]"))
    assert {one.candidate.batch.micro_batch_size for one in kept} <= {4, 8}


def test_old_trials_correct_the_model_of_the_new_cluster(old: OldPlan) -> None:
    """Everything took three times what the model says: it learns that."""
    candidate = old.trials[0].candidate
    plain = judge_old_plan(candidate, old.job, calibration=Calibration())
    measured = [one for one in old.trials if one.outcome is not NO_MEMORY]
    slow = tuple(
        replace(one, outcome=ran(3.0 * judge_old_plan(one.candidate, old.job, calibration=Calibration()).step_time_s))
        for one in measured
    )
    calibration = prior_calibration(replace(old, trials=slow), ())
    fitted = judge_old_plan(candidate, old.job, calibration=calibration)
    assert calibration.num_points == len(slow)
    assert (fitted.kind, plain.kind) == (Provenance.FITTED, Provenance.COMPUTED)
    assert 1.8 < fitted.step_time_s / plain.step_time_s < 3.3


FITTED = Calibration(
    memory_scale=1.44, memory_offset_bytes=100.0, time_scale=4.0, communication_factor=9.0, num_points=5
)


def changed(*kinds: ChangeKind) -> tuple[Change, ...]:
    return tuple(Change(kind=kind, what="", before="a", after="b") for kind in kinds)


def test_a_correction_survives_what_it_is_not_about() -> None:
    for kinds in ((), (ChangeKind.NODES,), (ChangeKind.USABLE_MEMORY,), (ChangeKind.DRIVER,)):
        assert transferred(FITTED, changed(*kinds), device=DeviceKind.CUDA) == FITTED


def test_another_gpu_unlearns_time_and_keeps_memory() -> None:
    left = transferred(FITTED, changed(ChangeKind.GPU), device=DeviceKind.CUDA)
    assert left == Calibration(memory_scale=1.44, memory_offset_bytes=100.0)


def test_more_processes_on_the_same_cores_unlearn_time() -> None:
    left = transferred(FITTED, changed(ChangeKind.GPUS_PER_NODE), device=DeviceKind.CPU)
    assert (left.time_scale, left.memory_scale) == (1.0, 1.44)


def test_another_link_unlearns_communication_only() -> None:
    left = transferred(FITTED, changed(ChangeKind.INTER_NODE_LINK), device=DeviceKind.CUDA)
    assert left == replace(FITTED, communication_factor=1.0)


def test_other_software_halves_every_correction() -> None:
    left = transferred(FITTED, changed(ChangeKind.SOFTWARE), device=DeviceKind.CUDA)
    assert left.memory_scale == pytest.approx(1.2)
    assert left.time_scale == pytest.approx(2.0)
    assert left.communication_factor == pytest.approx(3.0)
    assert left.memory_offset_bytes == pytest.approx(50.0)


def test_what_old_trials_still_do_is_told_of_the_correction_that_is_applied() -> None:
    """ "They correct the model" only where step times really change by them; else what stays computed, and why."""

    def words(calibration: Calibration, *kinds: ChangeKind, device: DeviceKind = DeviceKind.CPU) -> str:
        return carried_words(transferred(calibration, changed(*kinds), device=device), changed(*kinds), device=device)

    assert words(FITTED) == "correct the model"
    assert words(FITTED, ChangeKind.NODES, device=DeviceKind.CUDA) == "correct the model"
    fewer = words(FITTED, ChangeKind.GPUS_PER_NODE)
    assert fewer.startswith("correct the model's memory; step time is the uncorrected model's: another number of proc")
    assert "another GPU" in words(FITTED, ChangeKind.GPU, device=DeviceKind.CUDA)
    assert "did not foretell" in words(Calibration(memory_scale=1.1, num_points=4))
    assert words(Calibration()).startswith("correct nothing here")


def test_verdict_too_few_gpus_cannot_start(old: OldPlan, tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL, "cluster.gpus_per_node=1")
    verdict = judge_old_plan(old.trials[0].candidate, job, calibration=Calibration())
    assert not verdict.starts
    assert not verdict.runs
    assert verdict.sentence == "it cannot start: it needs 2 GPUs, and there are 1"
    assert verdict.tokens_per_s == 0.0


def test_verdict_more_gpus_leaves_some_idle(old: OldPlan, tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL, "cluster.gpus_per_node=4")
    verdict = judge_old_plan(old.trials[0].candidate, job, calibration=Calibration())
    assert verdict.runs
    assert "it still runs, leaving 2 GPUs idle" in verdict.sentence
    assert verdict.tokens_per_s > 0


def test_verdict_ranks_that_do_not_fill_nodes_cannot_start(old: OldPlan) -> None:
    candidate = old.trials[0].candidate
    wide = replace(
        candidate,
        layout=replace(candidate.layout, data_parallel_size=4),
        batch=replace(candidate.batch, data_parallel_size=4),
    )
    cluster = replace(old.job.cluster, nodes=2, gpus_per_node=3)
    verdict = judge_old_plan(wide, replace(old.job, cluster=cluster), calibration=Calibration())
    assert "do not fill whole nodes of 3 GPUs" in verdict.sentence


def test_verdict_layout_that_a_rule_refuses_cannot_start(old: OldPlan) -> None:
    candidate = old.trials[0].candidate
    odd = replace(candidate, batch=replace(candidate.batch, micro_batch_size=3))
    verdict = judge_old_plan(odd, old.job, calibration=Calibration())
    assert not verdict.starts
    assert verdict.sentence.startswith("it cannot start: ")


def test_verdict_less_memory_may_not_fit(old: OldPlan, tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL, "cluster.memory_gib=0.02")
    verdict = judge_old_plan(old.trials[0].candidate, job, calibration=Calibration())
    assert verdict.starts
    assert not verdict.runs
    assert "it starts but may not fit" in verdict.sentence


def test_verdict_a_trial_that_holds_is_believed_over_the_model(old: OldPlan) -> None:
    verdict = judge_old_plan(old.trials[1].candidate, old.job, calibration=Calibration(), kept=old.trials)
    assert (verdict.kind, verdict.step_time_s) == (Provenance.MEASURED, 0.3)
