from __future__ import annotations

import pytest

from planner.errors import NoFeasiblePlan
from planner.space import NamedLayout, enumerate_candidates, explain_empty, nearest_miss, refusals_of
from planner.spec import ActivationCheckpointing, JobSpec, Precision
from tests.unit.space.jobs import cluster, decoder, gpu, job, llama_405b, module


def explained(asked: JobSpec) -> NoFeasiblePlan:
    space = enumerate_candidates(asked)
    assert len(space) == 0
    return explain_empty(space, asked)


def rules_of(asked: JobSpec, layout: NamedLayout) -> set[str]:
    return {rejection.rule for rejection in refusals_of(asked, layout)}


def test_an_indivisible_batch_is_told_the_nearest_ones() -> None:
    error = explained(
        job(on=cluster(nodes=8), global_batch_size=510, tensor_parallel_size=(1,), pipeline_parallel_size=(1,))
    )
    assert error.exit_code == 3
    assert "training.global_batch_size 510 -> 448 or 512" in error.fix
    assert error.tally == (("data-parallel-divides-batch", 4 * 16 * 6),)
    assert "510 sequences" in error.why


def test_a_number_of_gpus_that_no_layout_can_use_is_told_the_nearest_that_can() -> None:
    error = explained(job(on=cluster(gpus_per_node=62), tensor_parallel_size=(4,), pipeline_parallel_size=(1, 2, 4)))
    assert "use 32 or 64 GPUs instead of 62" in error.fix


def test_nodes_are_counted_where_there_are_several() -> None:
    error = explained(
        job(on=cluster(nodes=15, gpus_per_node=4), tensor_parallel_size=(4,), pipeline_parallel_size=(2, 4))
    )
    assert "use 32 or 64 GPUs (8 or 16 nodes) instead of 60" in error.fix


def test_a_listed_value_that_is_impossible_is_told_the_possible_ones() -> None:
    error = explained(job(tensor_parallel_size=(3,)))
    assert "search.tensor_parallel_size: [1, 2, 4, 8]" in error.fix


def test_a_missing_precision_is_told_those_that_the_gpu_has() -> None:
    error = explained(job(on=cluster(device=gpu(bf16=0.0))))
    assert "search.precision: [fp32, fp16]" in error.fix
    assert dict(error.tally)["precision-unsupported-by-gpu"] > 0


def test_pipeline_with_zero_3_names_the_rule_and_both_ways_out() -> None:
    error = explained(job(llama_405b(), zero_stage=(2, 3), pipeline_parallel_size=(4,)))
    assert "pipeline-needs-zero-0-or-1" in dict(error.tally)
    assert "search.zero_stage: [0, 1]" in error.fix
    assert "search.pipeline_parallel_size: [1]" in error.fix


def test_axes_that_exclude_one_another_together_are_named_together() -> None:
    error = explained(job(module(), pipeline_parallel_size=(2,), tensor_parallel_size=(2,), global_batch_size=16))
    assert "leave tensor_parallel_size, pipeline_parallel_size out" in error.fix


def test_axes_that_block_each_other_are_left_out_together() -> None:
    asked = job(zero_stage=(3,), pipeline_parallel_size=(2, 5), tensor_parallel_size=(3,))
    error = explained(asked)
    assert "leave zero_stage, tensor_parallel_size, pipeline_parallel_size out" in error.fix


def test_a_job_that_needs_two_changes_is_told_both() -> None:
    asked = job(
        llama_405b(), on=cluster(nodes=1250), global_batch_size=4096, zero_stage=(3,), pipeline_parallel_size=(7,)
    )
    error = explained(asked)
    assert (
        "leave zero_stage, pipeline_parallel_size out under search and training.global_batch_size 4096 ->" in error.fix
    )


def test_nearest_miss_breaks_the_fewest_rules() -> None:
    asked = job(tensor_parallel_size=(3, 16), zero_stage=(3,), on=cluster(nodes=2))
    words, breaches = nearest_miss(asked)
    assert {breach.rule for breach in breaches} == {"kv-heads-divisible"}
    assert words.startswith("tensor 16 x pipeline 1 x data 1 on 2 nodes")


def test_nothing_that_helps_still_says_what_is_wrong() -> None:
    odd = decoder(num_heads=7, num_kv_heads=7, num_layers=1, ffn_hidden_size=7, vocab_size=7)
    error = explained(
        job(odd, on=cluster(gpus_per_node=11), global_batch_size=1, precision=(Precision.FP8,), micro_batch_size=(2,))
    )
    assert error.fix
    assert "nearest miss" in error.why


@pytest.mark.parametrize(
    ("layout", "rules"),
    [
        (NamedLayout(), set()),
        (NamedLayout(tensor_parallel_size=8), set()),
        (
            NamedLayout(tensor_parallel_size=3),
            {
                "world-uses-all-gpus",
                "heads-divisible",
                "kv-heads-divisible",
                "ffn-divisible",
                "tensor-parallel-crosses-node",
            },
        ),
        (NamedLayout(micro_batch_size=3), {"batch-identity"}),
        (NamedLayout(micro_batch_size=65), {"micro-batch-too-large"}),
        (NamedLayout(pipeline_parallel_size=2, zero_stage=2), {"pipeline-needs-zero-0-or-1"}),
        (NamedLayout(data_parallel_size=4), {"world-uses-all-gpus"}),
        (NamedLayout(gradient_accumulation_steps=3), {"batch-identity"}),
        (
            NamedLayout(activation_checkpointing=ActivationCheckpointing.parse("layers:80")),
            {"checkpointed-layers-equal-full"},
        ),
        (NamedLayout(activation_checkpointing=ActivationCheckpointing.parse("layers:7")), {"not-searched"}),
        (NamedLayout(precision=Precision.FP32), {"not-searched"}),
        (NamedLayout(precision=Precision.FP8), {"precision-not-trained"}),
        (NamedLayout(nodes=2), {"world-uses-all-gpus"}),
        (NamedLayout(tensor_parallel_size=0), {"world-uses-all-gpus"}),
    ],
)
def test_a_named_layout_is_told_every_rule_it_breaks(layout: NamedLayout, rules: set[str]) -> None:
    assert rules_of(job(), layout) == rules


def test_a_refusal_of_a_named_layout_shows_its_own_values() -> None:
    (refusal,) = refusals_of(job(), NamedLayout(pipeline_parallel_size=2, zero_stage=3))
    assert "zero_stage 3" in refusal.sentence
    assert "pipeline_parallel_size 2" in refusal.sentence
