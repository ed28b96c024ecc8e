"""What to run on a mixed cluster: one group alone, all GPUs at the slowest's pace, or a pipeline over the groups.

Each option is a job of its own, planned as any job is; the choice among them is the model's and pure.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from planner.app.draft import Draft, draft_plan
from planner.app.forecast import forecast_of
from planner.app.progress import Progress
from planner.app.selection import choices_by_model
from planner.emit import node_order_refusal
from planner.errors import InputError, NoFeasiblePlan
from planner.report.forecast import format_money
from planner.report.units import format_rate_short, format_seconds, plural
from planner.report.wording import short_candidate
from planner.spec import Candidate, ClusterSpec, JobSpec, Objective
from planner.spec._record import record
from planner.spec.forecast import Forecast


@record
class MixedOption:
    """One way to use a mixed cluster. `forecast` None: nothing fits, and `error` says why."""

    words: str
    job: JobSpec
    draft: Draft | None = None
    candidate: Candidate | None = None
    tokens_per_s: float = 0.0
    forecast: Forecast | None = None
    error: str = ""

    @property
    def sentence(self) -> str:
        """The option in one line, for people and for `plan.yaml`."""
        forecast = self.forecast
        if forecast is None or self.candidate is None:
            return f"{self.words}: {self.error}"
        told = f"{self.words}: {format_rate_short(self.tokens_per_s)} tokens/s ({forecast.kind})"
        told += f" on {plural(forecast.world_size, 'GPU')}, {short_candidate(self.candidate)}"
        stages = self.candidate.layout.stage_layers
        if self.job.cluster.groups:
            told += f", layers {' '.join(map(str, stages))}"
        told += f"; all steps in {format_seconds(forecast.expected_s)}"
        return told + (f" for {format_money(forecast.cost, forecast.currency)}" if forecast.cost else "")


def use_of_mixed(job: JobSpec, *, console: Progress) -> tuple[JobSpec, tuple[str, ...]]:
    """The job on what is best of its groups of nodes, and all that was considered, in words; a job whose cluster is of
    one kind is left as it is. Raises what `choose_use` raises."""
    if not job.cluster.groups:
        return job, ()
    console.stage("weigh the uses of the groups of nodes")
    chosen, options = choose_use(job)
    for option in options:
        console.note(("chosen: " if option is chosen else "considered: ") + option.sentence)
    return chosen.job, tuple(option.sentence for option in options)


def choose_use(job: JobSpec) -> tuple[MixedOption, tuple[MixedOption, ...]]:
    """The best way to use the job's mixed cluster by its objective, and all that were looked at.

    Raises NoFeasiblePlan when no option has a candidate that fits, InputError for money without prices.
    """
    if job.objective in (Objective.COST, Objective.DEADLINE):
        _refuse_unpriced(job.cluster)
    options = tuple(_looked_at(words, one) for words, one in _uses(job)) + _left_out(job)
    possible = [option for option in options if option.forecast is not None]
    if not possible:
        raise NoFeasiblePlan(
            f"no use of the {len(job.cluster.groups)} groups of nodes has a candidate that fits",
            why="; ".join(option.sentence for option in options),
            fix="use more nodes, GPUs with more memory, a shorter seq_len or a smaller model",
        )
    return max(possible, key=lambda option: _merit(option, job.objective)), options


def group_words(group: ClusterSpec) -> str:
    """`4 x 8 x h100-sxm-80gb`: nodes, GPUs of a node, the GPU."""
    return f"{group.nodes} x {group.gpus_per_node} x {group.gpu.name}"


def _uses(job: JobSpec) -> list[tuple[str, JobSpec]]:
    """Every option in words, with its job."""
    cluster = job.cluster
    uses = [(f"{group_words(group)} alone", replace(job, cluster=group)) for group in cluster.groups]
    sizes = {group.gpus_per_node for group in cluster.groups}
    if len(sizes) > 1:  # every launcher starts the same number of processes on each node
        return uses
    uses.append(("all GPUs at the slowest's pace", replace(job, cluster=replace(cluster, groups=()))))
    if node_order_refusal(job, job.launch.launcher):
        return uses
    for order in permutations(cluster.groups):
        words = "a pipeline over " + ", then ".join(group_words(group) for group in order)
        uses.append((words, replace(job, cluster=replace(cluster, groups=order))))
    return uses


def _left_out(job: JobSpec) -> tuple[MixedOption, ...]:
    """The uses that were not looked at, with the reason."""
    if len({group.gpus_per_node for group in job.cluster.groups}) > 1:
        why = "the groups' nodes have different numbers of GPUs, and launchers start as many processes on each node"
        return (MixedOption(words="all groups together", job=job, error=f"left out: {why}"),)
    why = node_order_refusal(job, job.launch.launcher)
    return (MixedOption(words="a pipeline over the groups", job=job, error=f"left out: {why}"),) if why else ()


def _looked_at(words: str, job: JobSpec) -> MixedOption:
    try:
        draft = draft_plan(job)
        selection = next(choices_by_model(draft))
    except NoFeasiblePlan as problem:
        return MixedOption(words=words, job=job, error=problem.error)
    promise = selection.promise
    return MixedOption(
        words=words,
        job=job,
        draft=draft,
        candidate=selection.candidate,
        tokens_per_s=promise.tokens_per_s,
        forecast=forecast_of(job, selection.candidate, step_time_s=promise.step_time_s, kind=promise.step_time_kind),
    )


def _merit(option: MixedOption, objective: Objective) -> tuple[float, ...]:
    """Larger is better. Of equals the one with fewer GPUs, so that an even pipeline needs no second kind of node."""
    forecast = option.forecast
    if forecast is None:
        return (float("-inf"),)
    tokens_per_cost = option.tokens_per_s / max(forecast.price_per_gpu_hour * forecast.world_size, 1e-12)
    speed, fewest = round(option.tokens_per_s, 3), -float(forecast.world_size)
    if objective is Objective.COST:
        return (tokens_per_cost, fewest)
    if objective is Objective.FEWEST_GPUS:
        return (fewest, speed)
    if objective is Objective.DEADLINE:
        late = max(forecast.expected_s - forecast.within_s, 0.0)
        return (-late, tokens_per_cost, fewest)
    return (speed, fewest)


def _refuse_unpriced(cluster: ClusterSpec) -> None:
    unknown = sorted({group.gpu.name for group in cluster.groups if not group.gpu.price_per_hour})
    currencies = sorted({group.gpu.price_currency for group in cluster.groups})
    if unknown or len(currencies) > 1:
        why = f"no price is known of {', '.join(unknown)}" if unknown else f"they are in {' and '.join(currencies)}"
        raise InputError(
            "groups of nodes are compared by cost, and their prices cannot be",
            why=why,
            fix="give price_per_gpu_hour in each group, or prices: {gpu: …} in the job or in the site's defaults",
        )
