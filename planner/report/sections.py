"""A plan's records as a document: which sections there are, and what each says."""

from __future__ import annotations

from planner.report.candidates import candidate_blocks
from planner.report.document import Block, Column, Document, Paragraph, Section, Table
from planner.report.explain import explain_cautions, explain_choice
from planner.report.fallbacks import fallback_blocks
from planner.report.files import file_blocks
from planner.report.forecast import forecast_blocks
from planner.report.input import CandidateRow, ReportInput
from planner.report.limits import limit_blocks
from planner.report.memory import memory_blocks
from planner.report.next_steps import next_commands
from planner.report.pinned import pinned_blocks
from planner.report.replanned import origin_blocks, survival_blocks
from planner.report.rivals import doubt_blocks, rival_blocks
from planner.report.schedule import schedule_blocks
from planner.report.steptime import time_blocks
from planner.report.trials import log_blocks, search_blocks
from planner.report.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_rate_short,
    format_seconds,
    format_tokens_per_s,
    plural,
)
from planner.report.wording import (
    PROVENANCE_SENTENCES,
    describe_candidate,
    short_candidate,
)
from planner.spec.kinds import DeviceKind, Provenance


def build_document(report: ReportInput) -> Document:
    """Every section of the report, in reading order; sections without anything to say are left out."""
    sections = (
        Section(
            title="The choice",
            blocks=tuple(Paragraph(text=text) for text in (*explain_choice(report), *explain_cautions(report))),
        ),
        Section(title="What to run next", blocks=next_commands(report)),
        Section(title="Since the plan before", blocks=origin_blocks(report.plan.replanned)),
        Section(title="Why not your layout", blocks=pinned_blocks(report)),
        Section(title="What the plan promises", blocks=_promise(report)),
        Section(title="Days and money", blocks=forecast_blocks(report.forecast)),
        Section(title="All candidates", blocks=candidate_blocks(report)),
        Section(title="Device memory", blocks=memory_blocks(report)),
        Section(title="Time of one step", blocks=time_blocks(report)),
        Section(title="Pipeline schedule", blocks=schedule_blocks(report)),
        Section(title="What limits it", blocks=limit_blocks(report)),
        Section(title="Runner-up and nearest miss", blocks=rival_blocks(report)),
        Section(title="If the model is wrong", blocks=doubt_blocks(report)),
        Section(title="If it runs out of memory", blocks=fallback_blocks(report)),
        Section(title="If nodes are lost", blocks=survival_blocks(report.plan, report.plan_dir)),
        Section(title="The search", blocks=search_blocks(report)),
        Section(title="Logs of the trials", blocks=log_blocks(report)),
        Section(title="Best candidates not tried", blocks=_candidates(report.untried)),
        Section(title="Left out because they cannot fit", blocks=_candidates(report.screened)),
        Section(title="Refused by a rule", blocks=_rejections(report)),
        Section(title="Axes left out", blocks=_pairs(report.plan.search.left_out_axes, "axis", "why")),
        Section(title="Validation", blocks=_validation(report)),
        Section(title="The emitted files, line by line", blocks=file_blocks(report)),
        Section(title="Versions and hardware", blocks=_environment(report)),
    )
    plan = report.plan
    return Document(
        title=f"Plan for {report.job.model.name}",
        subtitle=f"{short_candidate(plan.candidate)}: {describe_candidate(plan.candidate)}",
        facts=_facts(report),
        sections=tuple(section for section in sections if section.blocks),
    )


def _facts(report: ReportInput) -> tuple[tuple[str, str, str], ...]:
    promise = report.plan.promise
    used = promise.device_used_bytes / promise.usable_bytes
    return (
        ("speed", format_tokens_per_s(promise.tokens_per_s), str(promise.step_time_kind)),
        ("one step", format_seconds(promise.step_time_s), str(promise.step_time_kind)),
        (
            "device memory",
            f"{format_bytes(promise.device_used_bytes)} ({format_fraction(used)})",
            str(promise.memory_kind),
        ),
        ("devices", format_count(report.plan.candidate.layout.world_size), report.job.cluster.gpu.name),
    )


def _promise(report: ReportInput) -> tuple[Block, ...]:
    plan, promise, estimate = report.plan, report.plan.promise, report.plan.estimate
    time_kind, memory_kind = str(promise.step_time_kind), str(promise.memory_kind)
    world_size = plan.candidate.layout.world_size
    mfu = estimate.mfu_fraction * estimate.step_time_s / promise.step_time_s  # of the promised speed, not the model's
    rows = [
        ("time of one optimizer step", format_seconds(promise.step_time_s), time_kind),
        ("speed", format_tokens_per_s(promise.tokens_per_s), time_kind),
        ("speed of one device", format_tokens_per_s(promise.tokens_per_s / world_size), time_kind),
        ("device memory, worst rank", format_bytes(promise.device_used_bytes), memory_kind),
        ("usable device memory", format_bytes(promise.usable_bytes), str(report.job.cluster.gpu.kind)),
        ("host memory of a node", format_bytes(estimate.memory.host_bytes), str(estimate.kind)),
        ("sequences per step", format_count(plan.candidate.batch.global_batch_size), "as the job says"),
    ]
    if report.job.cluster.gpu.device is not DeviceKind.CPU:  # a CPU's peak is too rough a figure for it
        rows.insert(3, ("share of the peak (MFU)", format_fraction(mfu), time_kind))
    if promise.first_losses:
        losses = ", ".join(f"{loss:.4f}" for loss in promise.first_losses)
        rows.append(("first losses", losses, str(Provenance.MEASURED)))
    columns = (Column(heading="figure"), Column(heading="promised", numeric=True), Column(heading="origin"))
    meanings = tuple((str(kind), meaning) for kind, meaning in PROVENANCE_SENTENCES.items())
    return (
        Table(columns=columns, rows=tuple(rows)),
        Paragraph(text=f"The candidate's key in plan.yaml and trials.jsonl is {plan.key}. Origins, strongest first:"),
        *_pairs(meanings, "origin", "meaning"),
    )


def _candidates(rows: tuple[CandidateRow, ...]) -> tuple[Block, ...]:
    if not rows:
        return ()
    columns = (
        Column(heading="candidate"),
        Column(heading="step", numeric=True),
        Column(heading="tokens/s", numeric=True),
        Column(heading="memory", numeric=True),
        Column(heading="cannot do without", numeric=True),
        Column(heading="usable", numeric=True),
        Column(heading="origin"),
    )
    text = (
        "Memory is that of the worst rank, comparable with what the plan promises; what a run cannot do without leaves "
        "out the cached blocks that the allocator can give back."
    )
    return Paragraph(text=text), Table(columns=columns, rows=tuple(_candidate_row(row) for row in rows))


def _candidate_row(row: CandidateRow) -> tuple[str, ...]:
    memory = row.estimate.memory
    return (
        short_candidate(row.candidate),
        format_seconds(row.estimate.step_time_s),
        format_rate_short(row.estimate.tokens_per_s),
        format_bytes(memory.device_used_bytes),
        f"{format_bytes(memory.low_bytes)} to {format_bytes(memory.high_bytes)}",
        format_bytes(memory.usable_bytes),
        str(row.estimate.kind),
    )


def _rejections(report: ReportInput) -> tuple[Block, ...]:
    sentences = {row.rule: row.sentence for row in report.rejections}
    counts = {row.rule: row.count for row in report.rejections} or dict(report.plan.search.rejected)
    if not counts:
        return ()
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    columns = (Column(heading="rule", code=True), Column(heading="combinations", numeric=True), Column(heading="why"))
    rows = tuple((rule, format_count(count), sentences.get(rule, "")) for rule, count in ordered)
    total = f"{plural(report.plan.search.num_candidates, 'candidate is', 'candidates are')} legal. The rest:"
    return (Paragraph(text=total), Table(columns=columns, rows=rows))


def _validation(report: ReportInput) -> tuple[Block, ...]:
    if not report.plan.validation:
        return (Paragraph(text="Not validated: the plan was made with --no-validate."),)
    columns = (Column(heading="step"), Column(heading="result"), Column(heading="detail"))
    steps = report.plan.validation
    rows = tuple((step.name, "passed" if step.passed else "failed", step.detail) for step in steps)
    return (Table(columns=columns, rows=rows),)


def _environment(report: ReportInput) -> tuple[Block, ...]:
    plan = report.plan
    own = () if "planner" in dict(plan.versions) else (("planner", plan.planner_version),)
    hardware = tuple((name.replace("_", " "), value) for name, value in plan.hardware)
    origin = (("job hash", plan.job_hash), ("machine that planned", plan.machine or "not recorded"))
    return _pairs((*own, *plan.versions, *hardware, *origin), "what", "value")


def _pairs(pairs: tuple[tuple[str, str], ...], left: str, right: str) -> tuple[Block, ...]:
    if not pairs:
        return ()
    return (Table(columns=(Column(heading=left), Column(heading=right)), rows=pairs),)
