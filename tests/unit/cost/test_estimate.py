"""The entry of the cost model: its result, what fits, chunks, checkpointing and parallelism seen from outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import load_gpu, load_model
from planner.cost import DEEPSPEED, FSDP, MEGATRON, REFERENCE_TRAINER, Calibration, estimate_columns
from planner.cost.columns import ARRAY_FIELDS
from planner.spec import Provenance
from planner.spec.candidate import partition_layers
from planner.spec.estimate import MemoryBreakdown, TimeBreakdown
from planner.spec.kinds import DeviceKind
from tests.unit.cost.samples import BILLION, cluster, columns, estimate, estimates, small_model, traced_model, training


def test_record_breakdowns_sum_to_device_memory_and_step_time() -> None:
    one = estimate(zero_stage=1, data_parallel_size=8, micro_batch_size=4)
    parts = [getattr(one.memory.breakdown, name) for name in MemoryBreakdown.__dataclass_fields__]
    assert sum(parts) == one.memory.device_used_bytes
    assert sum(getattr(one.time, name) for name in TimeBreakdown.__dataclass_fields__) == pytest.approx(one.step_time_s)


def test_record_of_a_row_holds_that_rows_numbers() -> None:
    several = estimates(zero_stage=[0, 1, 3], data_parallel_size=8)
    assert several.record_at(2).memory.allocated_bytes == several.allocated_bytes[2]
    assert several.record_at(2).memory.usable_bytes == cluster().gpu.memory_usable_bytes


def test_no_candidates_give_an_empty_result() -> None:
    nothing = columns(zero_stage=[0]).take(np.zeros(1, dtype=np.bool_))
    result = estimate_columns(nothing, model=BILLION, training=training(), cluster=cluster())
    assert len(result) == 0


def test_many_chunks_equal_one_by_one() -> None:
    stages = [0, 1, 2, 3] * 5_000  # more than one chunk
    result = estimates(zero_stage=stages, data_parallel_size=4)
    alone = estimates(zero_stage=[0, 1, 2, 3], data_parallel_size=4)
    for name in ARRAY_FIELDS:
        assert np.array_equal(getattr(result, name), np.tile(getattr(alone, name), 5_000)), name


def test_a_model_too_large_for_the_device_does_not_fit() -> None:
    assert not estimate(model=load_model("llama-3.1-70b"), zero_stage=0).fits
    assert estimate(zero_stage=1, data_parallel_size=8, micro_batch_size=1).fits


def test_host_memory_too_small_for_offload_does_not_fit() -> None:
    offloaded = columns(zero_stage=2, data_parallel_size=2, offload_optimizer="cpu")
    poor = cluster(host_memory_bytes=16 * 2**30)
    result = estimate_columns(offloaded, model=BILLION, training=training(), cluster=poor)
    assert not result.fits[0]
    assert result.high_bytes[0] < poor.gpu.memory_usable_bytes


def test_interval_surrounds_the_estimate_and_fits_uses_its_upper_end() -> None:
    memory = estimate(zero_stage=1, data_parallel_size=8).memory
    assert memory.low_bytes < memory.high_bytes
    exact = replace(cluster(), gpu=replace(cluster().gpu, memory_usable_bytes=memory.high_bytes))
    below = replace(cluster(), gpu=replace(cluster().gpu, memory_usable_bytes=memory.high_bytes - 1))
    rows = columns(zero_stage=1, data_parallel_size=8)
    fits = [estimate_columns(rows, model=BILLION, training=training(), cluster=one).fits[0] for one in (exact, below)]
    assert fits == [True, False]


def test_checkpointing_levels_order_memory_and_time() -> None:
    levels = ["none", "selective", "layers:12", "full"]
    result = estimates(checkpointing=levels, micro_batch_size=16, zero_stage=1, data_parallel_size=8)
    none, selective, half, full = result.activations_bytes
    assert none > selective > full
    assert none > half > full
    assert result.recompute_s[0] == 0 < result.recompute_s[2] < result.recompute_s[3]


def test_checkpointing_more_layers_than_a_stage_has_is_full() -> None:
    result = estimates(checkpointing=["layers:99", "full"], micro_batch_size=8, pipeline_parallel_size=4, zero_stage=1)
    assert result.allocated_bytes[0] == result.allocated_bytes[1]
    assert result.step_time_s[0] == pytest.approx(result.step_time_s[1])


def test_uneven_stages_are_priced_by_the_stage_that_holds_most() -> None:
    model = load_model("llama-3.1-405b")  # 126 layers
    assert max(partition_layers(126, 16)) == 8
    result = estimates(
        model=model, pipeline_parallel_size=[16, 18], tensor_parallel_size=8, gradient_accumulation_steps=64
    )
    assert result.worst_stage[0] in (0, 1)
    assert result.compute_s[0] > result.compute_s[1]


def test_first_pipeline_stage_keeps_most_micro_batches() -> None:
    deep = estimates(pipeline_parallel_size=8, micro_batch_size=4, gradient_accumulation_steps=[1, 32], zero_stage=1)
    assert deep.activations_bytes[1] > 3 * deep.activations_bytes[0]


def test_pipeline_bubble_shrinks_with_accumulation() -> None:
    result = estimates(pipeline_parallel_size=4, gradient_accumulation_steps=[4, 64])
    share = result.bubble_s / result.step_time_s
    assert share[1] < share[0] / 4
    assert result.bubble_s[0] == pytest.approx(result.bubble_s[1])  # one pass through the stages, however many follow
    equal_stages_s = 3 / 4 * (result.compute_s[0] + result.host_s[0])
    assert 0.7 * equal_stages_s < result.bubble_s[0] < equal_stages_s  # the last has the head, the others wait less


def test_tensor_parallelism_splits_the_vocabulary_only_where_the_runtime_does() -> None:
    stock = estimates(tensor_parallel_size=[1, 4], micro_batch_size=8, checkpointing="full", zero_stage=1)
    ours = estimates(
        tensor_parallel_size=[1, 4], micro_batch_size=8, checkpointing="full", zero_stage=1, profile=REFERENCE_TRAINER
    )
    assert ours.allocated_bytes[1] < stock.allocated_bytes[1]


def test_sequence_split_lowers_activations_under_tensor_parallelism() -> None:
    result = estimates(
        tensor_parallel_size=8, tensor_sequence_parallel=[False, True], micro_batch_size=8, profile=MEGATRON
    )
    assert result.activations_bytes[1] < result.activations_bytes[0]


def test_ulysses_divides_tokens_and_shards_states_over_its_ranks() -> None:
    result = estimates(sequence_parallel_size=[1, 4], zero_stage=1, micro_batch_size=8, seq_len=8192)
    assert result.activations_bytes[1] == pytest.approx(result.activations_bytes[0] / 4, rel=0.05)
    assert result.optimizer_bytes[1] == pytest.approx(result.optimizer_bytes[0] / 4, rel=0.01)


def test_interleaving_trades_bubble_for_activations() -> None:
    result = estimates(
        pipeline_parallel_size=4, virtual_pipeline_size=[1, 3], gradient_accumulation_steps=16, micro_batch_size=4
    )
    assert result.bubble_s[1] < result.bubble_s[0]
    assert result.activations_bytes[1] > result.activations_bytes[0]


def test_eager_attention_keeps_scores_that_grow_with_the_square_of_the_sequence() -> None:
    short = estimates(attention=["sdpa", "eager"], seq_len=1024, micro_batch_size=16)
    long = estimates(attention=["sdpa", "eager"], seq_len=4096, micro_batch_size=16)
    grown = (long.activations_bytes[1] - long.activations_bytes[0]) / (
        short.activations_bytes[1] - short.activations_bytes[0]
    )
    assert grown > 14


def test_compiled_layers_keep_less() -> None:
    eager = estimate(micro_batch_size=16, zero_stage=1)
    compiled = estimate(micro_batch_size=16, zero_stage=1, profile=replace(DEEPSPEED, compiled=True))
    assert compiled.memory.allocated_bytes < 0.8 * eager.memory.allocated_bytes
    assert compiled.step_time_s < eager.step_time_s


def test_low_rank_adapters_train_few_parameters() -> None:
    rows = columns(zero_stage=2, data_parallel_size=2)
    full = estimate_columns(rows, model=BILLION, training=training(), cluster=cluster())
    adapted = estimate_columns(rows, model=BILLION, training=training(lora_rank=16), cluster=cluster())
    assert adapted.optimizer_bytes[0] < 0.02 * full.optimizer_bytes[0]
    assert adapted.parameters_bytes[0] > full.parameters_bytes[0]


def test_training_a_share_of_the_parameters_keeps_states_for_that_share() -> None:
    rows = columns(zero_stage=1, data_parallel_size=2, micro_batch_size=8)
    full = estimate_columns(rows, model=BILLION, training=training(), cluster=cluster())
    half = estimate_columns(rows, model=BILLION, training=training(trainable_fraction=0.5), cluster=cluster())
    assert half.optimizer_bytes[0] == pytest.approx(0.5 * full.optimizer_bytes[0], rel=0.01)
    assert half.parameters_bytes[0] == full.parameters_bytes[0]
    assert half.compute_s[0] < full.compute_s[0]


@pytest.mark.parametrize("profile", [DEEPSPEED, REFERENCE_TRAINER, FSDP, MEGATRON])
def test_traced_module_is_priced_under_every_profile(profile: object) -> None:
    result = estimates(
        model=traced_model(), micro_batch_size=[1, 64], zero_stage=[0, 3], data_parallel_size=4, profile=profile
    )
    assert np.all(result.allocated_bytes > 0)
    assert np.all(np.isfinite(result.step_time_s))
    assert result.tokens_per_s[1] == pytest.approx(64 * 4 / result.step_time_s[1])


def test_calibration_corrects_and_marks_the_estimate() -> None:
    rows = columns(zero_stage=1, data_parallel_size=8)
    plain = estimate_columns(rows, model=BILLION, training=training(), cluster=cluster())
    known = Calibration(memory_scale=1.1, time_scale=1.5, num_points=3)
    fitted = estimate_columns(rows, model=BILLION, training=training(), cluster=cluster(), calibration=known)
    assert plain.kind is Provenance.COMPUTED
    assert fitted.kind is Provenance.FITTED
    assert fitted.step_time_s[0] == pytest.approx(1.5 * plain.step_time_s[0])
    assert fitted.optimizer_bytes[0] == pytest.approx(1.1 * plain.optimizer_bytes[0])


def test_cpu_process_has_no_context_and_no_communication_buffers() -> None:
    gpu = load_gpu("cpu")
    assert gpu.device is DeviceKind.CPU
    rows = columns(zero_stage=[0, 1], data_parallel_size=2, precision="fp32")
    result = estimate_columns(
        rows, model=small_model(), training=training(seq_len=128), cluster=cluster(gpu=gpu), profile=REFERENCE_TRAINER
    )
    assert np.all(result.context_bytes == 0)
    assert np.all(result.communication_bytes == 0)
    assert np.all(result.step_time_s > 0)


def test_model_flops_utilisation_is_a_share() -> None:
    result = estimates(micro_batch_size=[1, 8, 64], zero_stage=1, data_parallel_size=8)
    assert np.all((result.mfu_fraction > 0) & (result.mfu_fraction < 0.75))


def test_pipeline_of_an_encoder_decoder_still_holds_its_encoder() -> None:
    model = load_model("t5-large")
    result = estimates(model=model, pipeline_parallel_size=[1, 4], gradient_accumulation_steps=8, seq_len=512)
    assert result.parameters_bytes[1] > result.parameters_bytes[0] / 4
    assert result.mfu_fraction[1] < result.mfu_fraction[0]
