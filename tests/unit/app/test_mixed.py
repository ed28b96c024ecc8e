"""Mixed clusters: which uses are weighed, which wins by each objective, and that equal groups are no mixed cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.ability import decide_trials
from planner.app.draft import draft_plan, estimate_candidates
from planner.app.mixed import MixedOption, choose_use
from planner.app.selection import choices_by_model
from planner.emit import LaunchPaths, render_launch
from planner.errors import InputError, NotExpressible, TrialsUnavailable
from planner.jobfile import dump_job, load_job, resolve_job
from planner.spec import JobSpec, Launcher, Objective, TrialMode
from planner.trial import probe_cpu
from tests.unit.jobfile.jobs import job_of, write_job

JOB = """\
model: {{name: llama-3.2-1b}}
training: {{seq_len: 2048, global_batch_size: 128, steps: 20000}}
cluster:
  groups: [{groups}]
search: {{activation_checkpointing: [none, full], micro_batch_size: [1, 2], precision: bf16}}
objective: {objective}
{more}
"""
FAST = "{gpu: h100, nodes: 1}"
SLOW = "{gpu: a100-80gb, nodes: 1}"


def _job(folder: Path, *groups: str, objective: str = "throughput", more: str = "") -> JobSpec:
    return job_of(folder, JOB.format(groups=", ".join(groups), objective=objective, more=more))


def _by_words(options: tuple[MixedOption, ...], part: str) -> MixedOption:
    return next(option for option in options if part in option.words)


def test_every_use_is_weighed_and_the_fastest_is_chosen(tmp_path: Path) -> None:
    chosen, options = choose_use(_job(tmp_path, FAST, SLOW))
    assert [option.words.split()[0] for option in options] == ["1", "1", "all", "a", "a"]
    assert chosen.tokens_per_s == max(option.tokens_per_s for option in options)
    assert all(option.tokens_per_s > 0 for option in options)


def test_pipeline_over_the_groups_holds_fewer_layers_where_it_is_slower(tmp_path: Path) -> None:
    _, options = choose_use(_job(tmp_path, FAST, SLOW))
    pipeline = _by_words(options, "then 1 x 8 x a100")
    assert pipeline.candidate is not None
    layers = pipeline.candidate.layout.stage_layers
    half = len(layers) // 2
    assert sum(layers) == 16 and sum(layers[:half]) > sum(layers[half:])


def test_pipeline_that_wins_is_a_plan_whose_script_names_the_nodes(tmp_path: Path) -> None:
    groups = (
        FAST.replace("nodes: 1", "nodes: 1, gpus_per_node: 1"),
        SLOW.replace("nodes: 1", "nodes: 1, gpus_per_node: 1"),
    )
    chosen, options = choose_use(_job(tmp_path, *groups))
    assert chosen.job.cluster.groups and chosen.candidate is not None, [option.sentence for option in options]
    (script,) = render_launch(chosen.job, chosen.candidate, launcher=Launcher.TORCHRUN, paths=LaunchPaths())
    first = chosen.job.cluster.groups[0].gpu.name
    assert f"node 0 is {first}: stage 0 with {chosen.candidate.layout.stage_layers[0]} layers" in script.text
    (estimate,) = estimate_candidates(chosen.job, (chosen.candidate,))
    assert estimate.tokens_per_s == pytest.approx(chosen.tokens_per_s)


def test_job_of_the_plan_folder_draws_up_the_same_plan(tmp_path: Path) -> None:
    chosen, _ = choose_use(_job(tmp_path, FAST, SLOW))
    job = replace(chosen.job, cluster=chosen.job.cluster)
    again = resolve_job(load_job(write_job(tmp_path, dump_job(job), "again.yaml")))
    assert again == job
    assert next(choices_by_model(draft_plan(again))).candidate == chosen.candidate


def test_equal_groups_are_the_homogeneous_job(tmp_path: Path) -> None:
    alike = _job(tmp_path, FAST, FAST)
    plain = job_of(
        tmp_path,
        JOB.format(groups="", objective="throughput", more="").replace("  groups: []", "  gpu: h100\n  nodes: 2"),
    )
    assert alike == plain
    assert next(choices_by_model(draft_plan(alike))) == next(choices_by_model(draft_plan(plain)))


def test_cost_prefers_the_group_whose_tokens_are_cheap(tmp_path: Path) -> None:
    cheap = "{gpu: a100-80gb, nodes: 1, price_per_gpu_hour: 0.01}"
    chosen, options = choose_use(_job(tmp_path, FAST, cheap, objective="cost"))
    assert chosen.words == "1 x 8 x a100-sxm-80gb alone"
    costs = [one.forecast.cost for one in options if one.forecast is not None]
    assert chosen.forecast is not None and chosen.forecast.cost == min(costs)


def test_fewest_gpus_needs_one_group_only(tmp_path: Path) -> None:
    chosen, _ = choose_use(_job(tmp_path, FAST, SLOW, objective="fewest_gpus"))
    assert chosen.job.objective is Objective.FEWEST_GPUS
    assert chosen.candidate is not None and chosen.candidate.layout.world_size == 1


def test_money_without_prices_is_refused_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prices cannot be") as refused:
        choose_use(_job(tmp_path, FAST, "{gpu: h200, nodes: 1}", objective="cost"))
    assert "h200-sxm-141gb" in refused.value.why


def test_prices_in_two_currencies_cannot_be_compared(tmp_path: Path) -> None:
    euros = "{gpu: a100-80gb, nodes: 1, price_per_gpu_hour: {per_hour: 2, currency: EUR}}"
    with pytest.raises(InputError, match="prices cannot be") as refused:
        choose_use(_job(tmp_path, FAST, euros, objective="cost"))
    assert "EUR and USD" in refused.value.why


@pytest.mark.parametrize(
    "more", ["launch: {launcher: srun}", 'launch: {command: "train.py --c {deepspeed_config}"}'], ids=["srun", "own"]
)
def test_pipelines_are_left_out_where_nothing_keeps_their_order(tmp_path: Path, more: str) -> None:
    chosen, options = choose_use(_job(tmp_path, FAST, SLOW, more=more))
    left_out = _by_words(options, "a pipeline over the groups")
    assert left_out.error.startswith("left out: ") and left_out.forecast is None
    assert not chosen.job.cluster.groups


def test_different_numbers_of_gpus_a_node_are_planned_one_by_one(tmp_path: Path) -> None:
    chosen, options = choose_use(_job(tmp_path, FAST, SLOW.replace("nodes: 1", "nodes: 2, gpus_per_node: 4")))
    assert [bool(option.error) for option in options] == [False, False, True]
    assert chosen.words.endswith("alone")


def test_kubernetes_is_refused_for_a_pipeline_over_groups(tmp_path: Path) -> None:
    _, options = choose_use(_job(tmp_path, FAST, SLOW))
    pipeline = _by_words(options, "then 1 x 8 x a100")
    assert pipeline.candidate is not None
    with pytest.raises(NotExpressible, match="cannot be started this way"):
        render_launch(pipeline.job, pipeline.candidate, launcher=Launcher.KUBERNETES)


@pytest.mark.parametrize("mode", [TrialMode.REAL, TrialMode.EMULATED])
def test_trials_of_a_pipeline_over_groups_cannot_be_had(tmp_path: Path, mode: TrialMode) -> None:
    job = _job(tmp_path, FAST, SLOW)
    assert decide_trials(job, probe_cpu()).mode is TrialMode.NONE
    with pytest.raises(TrialsUnavailable):
        decide_trials(replace(job, trials=replace(job.trials, mode=mode)), probe_cpu())


def test_cheaper_group_never_makes_the_cheapest_use_dearer(tmp_path: Path) -> None:
    costs = []
    for price in (8.0, 4.0, 2.0, 1.0, 0.5):
        slow = f"{{gpu: a100-80gb, nodes: 1, price_per_gpu_hour: {price}}}"
        chosen, _ = choose_use(_job(tmp_path, FAST, slow, objective="cost"))
        assert chosen.forecast is not None
        costs.append(chosen.forecast.cost)
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]


def test_deadline_takes_the_cheapest_use_in_time_and_more_groups_as_it_nears(tmp_path: Path) -> None:
    slow = "{gpu: a100-80gb, nodes: 1, price_per_gpu_hour: 0.5}"
    uses = [
        choose_use(_job(tmp_path, FAST, slow, objective=f"{{deadline: {limit}}}"))[0] for limit in ("4h", "5h", "30d")
    ]
    assert all(use.forecast is not None and use.forecast.is_in_time for use in uses), [use.sentence for use in uses]
    costs = [use.forecast.cost for use in uses if use.forecast is not None]
    assert costs == sorted(costs, reverse=True)
    assert uses[0].job.cluster.groups and uses[-1].words == "1 x 8 x a100-sxm-80gb alone"
