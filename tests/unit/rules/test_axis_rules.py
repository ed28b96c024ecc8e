"""Each axis rule refuses what its sentence says and nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest

from planner.rules import AXIS_RULES, RULES, Rule, RuleContext, RuleStage, Severity, refusals
from planner.space.enumeration import named_columns
from planner.spec import (
    AccumulationType,
    Allocator,
    Attention,
    CrossEntropy,
    DeviceKind,
    OffloadDevice,
    OptimizerKernel,
    Overlap,
    Precision,
    Runtime,
    TorchCompile,
    Tuning,
)
from planner.spec.columns import (
    ATTENTIONS,
    FULL_CHECKPOINTING,
    OFFLOAD_DEVICES,
    PRECISIONS,
    SELECTIVE_CHECKPOINTING,
    CandidateColumns,
)
from planner.spec.tuning import tuning_code
from tests.unit.space.jobs import cluster, decoder, gpt2_like, gpu, module, training

BF16 = PRECISIONS.index(Precision.BF16)
FP16 = PRECISIONS.index(Precision.FP16)
FP8 = PRECISIONS.index(Precision.FP8)
CPU = OFFLOAD_DEVICES.index(OffloadDevice.CPU)
NVME = OFFLOAD_DEVICES.index(OffloadDevice.NVME)


def context(model=None, *, on=None, world: int = 8, given=None, **more) -> RuleContext:
    return RuleContext(
        model=model or decoder(),
        training=given or training(),
        cluster=on or cluster(nodes=2),
        world_sizes=(world,),
        **more,
    )


def row(**values: int) -> CandidateColumns:
    """A legal layout of 8 GPUs with a global batch of 64, changed where `values` says so."""
    usual = {"data_parallel_size": 8, "micro_batch_size": 1, "gradient_accumulation_steps": 8, "precision": BF16}
    return named_columns(**{**usual, **values})


def rule_named(name: str) -> Rule:
    return next(rule for rule in AXIS_RULES if rule.name == name)


MOE = decoder(num_experts=8, expert_ffn_hidden_size=100, num_dense_layers=0)
TP2 = {"tensor_parallel_size": 2, "data_parallel_size": 4, "gradient_accumulation_steps": 16}
PP4 = {"pipeline_parallel_size": 4, "data_parallel_size": 2, "gradient_accumulation_steps": 32}

LAYER = tuning_code(Tuning(torch_compile=TorchCompile.LAYER))
WHOLE = tuning_code(Tuning(torch_compile=TorchCompile.WHOLE))
OVERLAP = tuning_code(Tuning(overlap_comm=Overlap.ON))
FP32_SUMS = tuning_code(Tuning(grad_accum_dtype=AccumulationType.FP32))
HPZ2, HPZ8 = (tuning_code(Tuning(zero_hpz_partition_size=size)) for size in (2, 8))
FLASH = ATTENTIONS.index(Attention.FLASH)
ON_CPU = context(on=cluster(device=gpu(device=DeviceKind.CPU)))

# rule, context, values of both rows, a tuning that it refuses, one that it lets through
TUNED = [
    ("compile-layer-needs-blocks", context(module()), {}, Tuning(torch_compile=TorchCompile.LAYER), Tuning()),
    ("chunked-loss-needs-blocks", context(module()), {}, Tuning(cross_entropy=CrossEntropy.CHUNKED), Tuning()),
    ("allocator-needs-gpu", ON_CPU, {}, Tuning(allocator=Allocator.EXPANDABLE_SEGMENTS), Tuning()),
    (
        "accumulation-type-not-coarser",
        context(),
        {"zero_stage": 1},
        Tuning(grad_accum_dtype=AccumulationType.FP16),
        Tuning(grad_accum_dtype=AccumulationType.FP32),
    ),
    ("kernel-for-optimizer", ON_CPU, {}, Tuning(optimizer_kernel=OptimizerKernel.DEEPSPEED), Tuning()),
]

# rule, context, what it refuses, what it lets through (values over the legal row)
CASES = [
    ("world-uses-all-gpus", context(), {"data_parallel_size": 4}, {"data_parallel_size": 8}),
    (
        "tensor-parallel-needs-plan",
        context(decoder(tensor_parallel_refusal="no plan")),
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 1},
    ),
    ("tensor-parallel-needs-plan", context(module()), {"tensor_parallel_size": 2}, {}),
    ("heads-divisible", context(), {"tensor_parallel_size": 3}, {"tensor_parallel_size": 64}),
    ("kv-heads-divisible", context(), {"tensor_parallel_size": 16}, {"tensor_parallel_size": 8}),
    (
        "kv-heads-divisible",
        context(runtime=Runtime.MEGATRON),
        {"tensor_parallel_size": 12},
        {"tensor_parallel_size": 16},
    ),
    ("ffn-divisible", context(decoder(ffn_hidden_size=1001)), {"tensor_parallel_size": 2}, {"tensor_parallel_size": 7}),
    ("expert-ffn-divisible", context(MOE), {"tensor_parallel_size": 8}, {"tensor_parallel_size": 4}),
    ("vocabulary-divisible", context(gpt2_like()), {"tensor_parallel_size": 2}, {"tensor_parallel_size": 29}),
    ("tensor-parallel-crosses-node", context(), {"tensor_parallel_size": 16}, {"tensor_parallel_size": 8}),
    ("pipeline-needs-layers", context(module()), {"pipeline_parallel_size": 2}, {"pipeline_parallel_size": 1}),
    ("more-stages-than-layers", context(), {"pipeline_parallel_size": 81}, {"pipeline_parallel_size": 80}),
    ("no-interleaved-schedule", context(), {"virtual_pipeline_size": 2}, {}),
    (
        "sequence-parallel-divides-heads",
        context(),
        {"sequence_parallel_size": 3},
        {"sequence_parallel_size": 2, "tensor_parallel_size": 32},
    ),
    ("sequence-parallel-divides-sequence", context(), {"sequence_parallel_size": 3}, {"sequence_parallel_size": 4}),
    ("experts-divisible", context(MOE), {"expert_parallel_size": 3}, {"expert_parallel_size": 4}),
    ("experts-divisible", context(), {"expert_parallel_size": 2}, {}),
    ("expert-parallel-within-data-parallel", context(MOE), {"expert_parallel_size": 16}, {"expert_parallel_size": 8}),
    ("data-parallel-exceeds-batch", context(given=training(global_batch_size=4)), {}, {"data_parallel_size": 4}),
    ("data-parallel-divides-batch", context(given=training(global_batch_size=60)), {}, {"data_parallel_size": 6}),
    ("micro-batch-too-large", context(), {"micro_batch_size": 9}, {"micro_batch_size": 8}),
    ("batch-identity", context(), {"micro_batch_size": 3}, {"micro_batch_size": 2, "gradient_accumulation_steps": 4}),
    ("sequence-fits-positions", context(gpt2_like(), given=training(seq_len=1025)), {}, None),
    ("optimizer-unknown-to-deepspeed", context(given=training(optimizer="adam8bit")), {}, None),
    (
        "precision-unsupported-by-gpu",
        context(on=cluster(device=gpu(fp16=0.0))),
        {"precision": FP16},
        {"precision": BF16},
    ),
    ("precision-not-trained", context(), {"precision": FP8}, {}),
    ("pipeline-needs-zero-0-or-1", context(), {**PP4, "zero_stage": 2}, {**PP4, "zero_stage": 1}),
    ("pipeline-needs-zero-0-or-1", context(), {**PP4, "zero_stage": 3}, {"zero_stage": 3}),
    ("checkpointing-needs-layers", context(module()), {"checkpointed_layers": FULL_CHECKPOINTING}, {}),
    ("checkpointing-needs-layers", context(module()), {"checkpointed_layers": SELECTIVE_CHECKPOINTING}, {}),
    (
        "checkpointed-layers-equal-full",
        context(),
        {**PP4, "checkpointed_layers": 20},
        {**PP4, "checkpointed_layers": 19},
    ),
    (  # 126 layers on 4 stages: 31, 32, 32, 31
        "checkpointed-layers-equal-full",
        context(decoder(num_layers=126)),
        {**PP4, "checkpointed_layers": 32},
        {**PP4, "checkpointed_layers": 31},
    ),
    (
        "checkpointed-layers-beyond-stage",
        context(),
        {**PP4, "checkpointed_layers": 21},
        {**PP4, "checkpointed_layers": 20},
    ),
    (
        "lion-needs-gpu",
        context(given=training(optimizer="lion"), on=cluster(device=gpu(device=DeviceKind.CPU))),
        {},
        {"offload_optimizer": CPU},
    ),
    ("muon-needs-whole-matrices", context(given=training(optimizer="muon")), TP2, {}),
    (
        "muon-pipeline-needs-zero-1",
        context(given=training(optimizer="muon")),
        {**PP4, "zero_stage": 0},
        {**PP4, "zero_stage": 1},
    ),
    (
        "offload-param-needs-zero-3",
        context(),
        {"offload_param": CPU, "zero_stage": 2},
        {"offload_param": CPU, "zero_stage": 3},
    ),
    (
        "offload-optimizer-needs-zero",
        context(),
        {"offload_optimizer": CPU, "zero_stage": 0},
        {"offload_optimizer": CPU, "zero_stage": 1},
    ),
    (
        "offload-nvme-needs-zero-3",
        context(),
        {"offload_optimizer": NVME, "zero_stage": 2},
        {"offload_optimizer": NVME, "zero_stage": 3},
    ),
    *(
        (rule, judged_in, {**common, "tuning": tuning_code(refused)}, {**common, "tuning": tuning_code(passed)})
        for rule, judged_in, common, refused, passed in TUNED
    ),
    ("compile-whole-needs-one-stage", context(), {**PP4, "tuning": WHOLE}, {"tuning": WHOLE}),
    ("compile-without-tensor-parallel", context(), {**TP2, "tuning": LAYER}, {"tuning": LAYER}),
    ("compile-without-zero-3", context(), {"zero_stage": 3, "tuning": LAYER}, {"zero_stage": 2, "tuning": LAYER}),
    ("overlap-without-pipeline", context(), {**PP4, "tuning": OVERLAP}, {"tuning": OVERLAP}),
    ("accumulation-type-needs-zero", context(), {"tuning": FP32_SUMS}, {"zero_stage": 1, "tuning": FP32_SUMS}),
    ("hpz-divides-node", context(), {**TP2, "tuning": HPZ8}, {"zero_stage": 3, "tuning": HPZ8}),
    ("hpz-divides-node", context(on=cluster(gpus_per_node=4)), {"tuning": HPZ8}, {"tuning": HPZ2}),
    (
        "flash-needs-16-bit",
        context(),
        {"attention": FLASH, "precision": PRECISIONS.index(Precision.FP32)},
        {"attention": FLASH},
    ),
    ("offload-nvme-needs-path", context(), {"offload_optimizer": NVME}, {"offload_optimizer": CPU}),
    (
        "offload-needs-host-optimizer",
        context(given=training(optimizer="sgd")),
        {"offload_optimizer": CPU},
        {},
    ),
]


@pytest.mark.parametrize(("name", "judged_in", "refused", "passed"), CASES)
def test_rule_refuses_its_case_and_passes_its_counterpart(name, judged_in, refused, passed) -> None:
    rule = rule_named(name)
    assert rule.refuses(row(**refused), judged_in).tolist() == [True]
    if passed is not None:
        assert rule.refuses(row(**passed), judged_in).tolist() == [False]


def test_every_axis_rule_has_a_case() -> None:
    assert {rule.name for rule in AXIS_RULES} == {name for name, *_rest in CASES}


def test_refusals_of_a_legal_row_are_none() -> None:
    assert refusals(row(), context()) == ()


def test_rule_names_are_unique_and_sentences_are_sentences() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule.mask is not None or rule.check is not None, rule.name
        assert rule.source
        assert len(rule.explain(context())) > 20


def test_axis_rules_stand_in_the_order_of_the_sieve() -> None:
    stages = [rule.stage for rule in AXIS_RULES]
    assert stages == sorted(stages, key=list(RuleStage).index)


def test_practice_yields_to_a_listed_value_and_refusals_do_not() -> None:
    listed = context(listed_axes=frozenset({"tensor_parallel_size"}))
    wide = row(tensor_parallel_size=16)
    assert not rule_named("tensor-parallel-crosses-node").refuses(wide, listed).any()
    assert rule_named("kv-heads-divisible").refuses(wide, listed).all()
    assert rule_named("tensor-parallel-crosses-node").severity is Severity.WARNING


def test_an_estimate_of_other_code_is_not_judged_by_the_trainer() -> None:
    judged = context(gpt2_like(), runtime=Runtime.MEGATRON, reference_trainer=False)
    names = {rule.name for rule, _rows in refusals(row(**TP2, zero_stage=1), judged)}
    assert names == set()


def test_masks_do_not_change_the_columns() -> None:
    columns = row(tensor_parallel_size=3, pipeline_parallel_size=5, zero_stage=3)
    before = {name: getattr(columns, name).copy() for name in columns.__dataclass_fields__}
    refusals(columns, context())
    assert all(np.array_equal(before[name], getattr(columns, name)) for name in before)
