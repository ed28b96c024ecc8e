"""Which trials of an old plan hold on another cluster, and what the others still teach the model. Pure.

A trial holds when what it measured would be measured again: the same GPU, the same software, the same work of a rank.

- A real trial ran on all ranks of its candidate: it holds for that very candidate, if the links are the same too.
- An emulated one ran single ranks without a network: memory and computing hold wherever a rank does the same work, and
  what it sent is priced again on the new links. Without ZeRO a rank does the same work at every data-parallel size.
- That memory ran out holds where there is no more of it.
"""

from __future__ import annotations

from dataclasses import replace

from planner.app.changes import Surroundings
from planner.app.draft import estimate_candidates
from planner.app.pin import holds
from planner.cost import Calibration, fit_calibration
from planner.space import enumerate_candidates
from planner.spec import Candidate, DeviceKind, JobSpec, Measured, OutOfMemory, Provenance, TrialRecord
from planner.spec._record import record
from planner.spec.columns import CandidateColumns
from planner.spec.replan import Change, ChangeKind
from planner.trial.carried import same_rank_work, with_other_network

_LINKS = (ChangeKind.INTRA_NODE_LINK, ChangeKind.INTER_NODE_LINK)


@record
class OldPlan:
    """The job and trials of the old plan, and what it was made for."""

    job: JobSpec
    trials: tuple[TrialRecord, ...]
    surroundings: Surroundings


@record
class Sorted:
    """`kept` hold (their figures those of the new cluster); `others` are what the model can only learn from."""

    kept: tuple[TrialRecord, ...]
    others: tuple[TrialRecord, ...]


def sort_trials(old: OldPlan, job: JobSpec, *, machine: str, changes: tuple[Change, ...]) -> Sorted:
    """The old plan's trials by what they are worth for the new job. `machine`: this one's fingerprint, which holds the
    versions of the software too."""
    columns = enumerate_candidates(job).columns
    emulated = any(_is_emulated(trial) for trial in old.trials)
    kept: list[TrialRecord] = []
    others: list[TrialRecord] = []
    for trial in old.trials:
        held: tuple[TrialRecord, ...] = ()
        if trial.machine == machine and job.cluster.gpu.name == old.job.cluster.gpu.name:
            held = _emulated(trial, old, job, columns) if emulated else _real(trial, job, columns, changes)
        kept += held
        if not held:
            others.append(trial)
    return Sorted(kept=tuple(kept), others=tuple(others))


def _is_emulated(trial: TrialRecord) -> bool:
    return isinstance(trial.outcome, Measured) and trial.outcome.kind is Provenance.EMULATED


def _real(
    trial: TrialRecord, job: JobSpec, columns: CandidateColumns, changes: tuple[Change, ...]
) -> tuple[TrialRecord, ...]:
    """All ranks ran: the same candidate, over the same links."""
    links = any(change.kind in _LINKS for change in changes) and trial.candidate.layout.world_size > 1
    same = holds(columns, trial.candidate) and not links and _says_something(trial, job, changes)
    return (trial,) if same else ()


def _says_something(trial: TrialRecord, job: JobSpec, changes: tuple[Change, ...]) -> bool:
    """Running out of memory says nothing where there is more of it (and a cap on CPU is the job's own)."""
    if not isinstance(trial.outcome, OutOfMemory):
        return True
    changed = any(change.kind is ChangeKind.USABLE_MEMORY for change in changes)
    return not changed or job.cluster.gpu.memory_usable_bytes <= trial.outcome.capacity_bytes


def _emulated(trial: TrialRecord, old: OldPlan, job: JobSpec, columns: CandidateColumns) -> tuple[TrialRecord, ...]:
    """Single ranks ran: every candidate of the new job in which a rank does the same."""
    more_memory = job.cluster.gpu.memory_usable_bytes > old.job.cluster.gpu.memory_usable_bytes
    if isinstance(trial.outcome, OutOfMemory) and more_memory:
        return ()
    found = []
    for candidate in _of_the_same_rank(trial.candidate, job):
        if not holds(columns, candidate):
            continue
        outcome = trial.outcome
        if isinstance(outcome, Measured):
            outcome = with_other_network(outcome, old=trial.candidate, new=candidate, job=job)
        found.append(replace(trial, key=candidate.key, candidate=candidate, outcome=outcome))
    return tuple(found)


def _of_the_same_rank(candidate: Candidate, job: JobSpec) -> tuple[Candidate, ...]:
    """The candidate on the new cluster's sizes, where the work of its ranks stays what it was."""
    layout, batch = candidate.layout, candidate.batch
    split = layout.tensor_parallel_size * layout.pipeline_parallel_size
    worlds = [nodes * job.cluster.gpus_per_node for nodes in job.node_counts or (job.cluster.nodes,)]
    found = []
    for world in worlds:
        data, rest = divmod(world, split)
        per_step = batch.micro_batch_size * data
        if rest or not data or job.training.global_batch_size % per_step:
            continue
        other = replace(
            candidate,
            layout=replace(layout, data_parallel_size=data),
            batch=replace(
                batch,
                data_parallel_size=data,
                gradient_accumulation_steps=job.training.global_batch_size // per_step,
            ),
        )
        if same_rank_work(candidate, other):
            found.append(other)
    return tuple(found)


def prior_calibration(old: OldPlan, changes: tuple[Change, ...]) -> Calibration:
    """What all old trials say of the model, as far as it is likely to hold on the new cluster."""
    tried = [trial for trial in old.trials if isinstance(trial.outcome, Measured | OutOfMemory)]
    if not tried:
        return Calibration()
    estimates = estimate_candidates(old.job, tuple(trial.candidate for trial in tried))
    ends = [(estimate, trial.outcome) for estimate, trial in zip(estimates, tried)]
    fitted = fit_calibration(
        [(estimate, end) for estimate, end in ends if isinstance(end, Measured)],
        ran_out=[estimate for estimate, end in ends if isinstance(end, OutOfMemory)],
    )
    return transferred(fitted, changes, device=old.job.cluster.gpu.device)


def transferred(calibration: Calibration, changes: tuple[Change, ...], *, device: DeviceKind) -> Calibration:
    """The part of a correction that survives the changes.

    Memory is what a rank allocates: no other GPU and no other network changes that. Time of another GPU, or of another
    number of CPU processes that share the cores, is not known (estimates are then called computed); a changed link
    unlearns what was learnt of the old one.
    Of other software all corrections are believed half: the square root, since they are factors.
    """
    kinds = {change.kind for change in changes}
    known = calibration
    sizes = {ChangeKind.NODES, ChangeKind.GPUS_PER_NODE}
    if ChangeKind.GPU in kinds or (device is DeviceKind.CPU and kinds & (sizes | {ChangeKind.MACHINE})):
        none = Calibration()
        known = replace(
            none,
            memory_scale=known.memory_scale,
            memory_offset_bytes=known.memory_offset_bytes,
            memory_residual_fraction=known.memory_residual_fraction,
        )
    if kinds & set(_LINKS):
        known = replace(known, communication_factor=1.0)
    return _halved(known) if ChangeKind.SOFTWARE in kinds else known


def carried_words(calibration: Calibration, changes: tuple[Change, ...], *, device: DeviceKind) -> str:
    """What the old trials that do not hold still do here, after "they": told of the correction that is really applied.
    `calibration`: as `prior_calibration` gives it for these changes."""
    if calibration.corrects_time:
        return "correct the model"
    kinds = {change.kind for change in changes}
    if ChangeKind.GPU in kinds:
        why = "that of another GPU is not known from them"
    elif device is DeviceKind.CPU and ChangeKind.MACHINE in kinds:
        why = "that of another machine's cores is not known from them"
    elif device is DeviceKind.CPU and kinds & {ChangeKind.NODES, ChangeKind.GPUS_PER_NODE}:
        why = "another number of processes shares the cores"
    elif calibration.num_points:
        why = "a correction made from some of them did not foretell the others, so none is kept"
    else:
        why = "none of them measured any"
    what = "correct the model's memory" if calibration.corrects_memory else "correct nothing here"
    return f"{what}; step time is the uncorrected model's: {why}"


def _halved(calibration: Calibration) -> Calibration:
    factors = {
        name: getattr(calibration, name) ** 0.5
        for name in Calibration.__dataclass_fields__
        if name.endswith("_factor") or name.endswith("_scale")
    }
    return replace(calibration, **factors, memory_offset_bytes=calibration.memory_offset_bytes / 2)
