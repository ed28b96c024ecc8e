from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InputError
from planner.space import MICRO_BATCH_LIMIT, LeftOutAxis, World, axis_values, checkpointing_codes
from planner.space.axes import divisors
from planner.spec import ActivationCheckpointing, LaunchSpec, Objective, Precision
from planner.spec.columns import FULL_CHECKPOINTING, SELECTIVE_CHECKPOINTING
from tests.unit.space.jobs import cluster, decoder, job, module


def test_axes_left_out_take_all_that_could_be_legal() -> None:
    axes = axis_values(job(on=cluster(nodes=2), global_batch_size=12))
    assert axes.tensor_parallel_size == axes.pipeline_parallel_size == (1, 2, 4, 8, 16)
    assert axes.micro_batch_size == (1, 2, 3, 4, 6, 12)
    assert axes.zero_stage == (0, 1, 2, 3)
    assert axes.precision == (Precision.BF16,)
    assert axes.left_out == ()


def test_listed_axis_has_exactly_its_values_in_order_and_once() -> None:
    axes = axis_values(job(tensor_parallel_size=(4, 1, 4), micro_batch_size=(7,), zero_stage=(3,)))
    assert axes.tensor_parallel_size == (1, 4)
    assert axes.micro_batch_size == (7,)
    assert axes.zero_stage == (3,)


def test_default_micro_batches_end_at_the_limit() -> None:
    assert max(axis_values(job(global_batch_size=4096)).micro_batch_size) == MICRO_BATCH_LIMIT


@pytest.mark.parametrize(
    ("layers", "stages", "codes"),
    [
        (80, 1, (0, 20, 40, 60)),
        (80, 8, (0, 2, 5, 8)),
        (126, 16, (0, 2, 4, 5)),  # the smallest stage holds 7
        (4, 4, (0,)),
        (2, 1, (0, 1)),
        (3, 8, (0,)),  # more stages than layers: refused later, but no nonsense here
    ],
)
def test_checkpointing_takes_a_few_shares_of_the_smallest_stage(layers, stages, codes) -> None:
    axes = axis_values(job(decoder(num_layers=layers)))
    found = checkpointing_codes(axes, num_layers=layers, pipeline_parallel_size=stages)
    assert found == (*codes, SELECTIVE_CHECKPOINTING, FULL_CHECKPOINTING)


def test_axes_an_arbitrary_module_cannot_take_are_left_out_with_the_reason() -> None:
    axes = axis_values(job(module()))
    assert {axis.axis for axis in axes.left_out} == {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "activation_checkpointing",
    }
    assert all(axis.reason for axis in axes.left_out)
    assert axes.tensor_parallel_size == axes.pipeline_parallel_size == (1,)
    assert axes.checkpointing == (ActivationCheckpointing(),)


def test_model_says_itself_why_it_takes_no_pipeline() -> None:
    axes = axis_values(job(decoder(pipeline_parallel_refusal="its layers share weights")))
    assert axes.left_out == (LeftOutAxis(axis="pipeline_parallel_size", reason="its layers share weights"),)


def test_own_command_leaves_out_what_json_cannot_ask_for_unless_listed() -> None:
    own = replace(job(tensor_parallel_size=(1, 2)), launch=LaunchSpec(command="train.py {deepspeed_config}"))
    assert {axis.axis for axis in axis_values(own).left_out} == {"pipeline_parallel_size", "activation_checkpointing"}


@pytest.mark.parametrize("objective", [Objective.COST, Objective.FEWEST_GPUS])
def test_fewer_gpus_are_considered_only_when_the_objective_asks(objective: Objective) -> None:
    worlds = axis_values(job(on=cluster(nodes=3), objective=objective)).worlds
    assert [world.world_size for world in worlds] == [1, 2, 4, 8, 16, 24]
    assert [world.nodes for world in worlds] == [1, 1, 1, 1, 2, 3]
    assert axis_values(job(on=cluster(nodes=3))).worlds == (World(nodes=3, world_size=24),)


def test_a_large_cluster_is_thinned_to_powers_and_their_halves_between() -> None:
    worlds = axis_values(job(on=cluster(nodes=100, gpus_per_node=1), objective=Objective.COST)).worlds
    assert [world.nodes for world in worlds] == [*range(1, 17), 24, 32, 48, 64, 96, 100]


def test_cluster_sizes_can_be_named_by_the_caller() -> None:
    assert axis_values(job(), nodes=(4, 2, 4)).worlds == (
        World(nodes=2, world_size=16),
        World(nodes=4, world_size=32),
    )


@pytest.mark.parametrize("objective", list(Objective))
def test_cluster_sizes_that_the_job_names_are_considered_whatever_the_objective(objective: Objective) -> None:
    asked = replace(job(on=cluster(nodes=4), objective=objective), node_counts=(2, 4))
    assert axis_values(asked).worlds == (World(nodes=2, world_size=16), World(nodes=4, world_size=32))


@pytest.mark.parametrize(
    "ranges",
    [
        {"tensor_parallel_size": (0,)},
        {"micro_batch_size": (-1,)},
        {"micro_batch_size": (10**30,)},
        {"zero_stage": (4,)},
        {"pipeline_parallel_size": ()},
        {"precision": ()},
    ],
)
def test_listed_values_that_mean_nothing_are_the_users_error(ranges) -> None:
    with pytest.raises(InputError):
        axis_values(job(**ranges))


@pytest.mark.parametrize(("on", "batch"), [(cluster(), 10**30), (cluster(nodes=10**12), 8)])
def test_absurd_sizes_are_the_users_error(on, batch) -> None:
    with pytest.raises(InputError):
        axis_values(job(on=on, global_batch_size=batch))


def test_divisors_of_a_prime_are_found_without_walking_to_it() -> None:
    assert divisors(99_999_989) == (1, 99_999_989)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(36, limit=9) == (1, 2, 3, 4, 6, 9)
