"""Every line of every emitted file that does something says what it is for."""

from __future__ import annotations

import re

import pytest

from planner.catalog import load_model
from planner.emit import FILES, explain_ds_config, explain_lines, render_ds_config, render_launch, render_task_text
from planner.emit.ds_config import render_ds_config_text
from planner.spec import Launcher, LaunchSpec, Precision
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

_GOES_ON = re.compile(r"(fi|esac|;;|exit 2|\}|\]|\{|shift)?,?$|[\d.]+,?$|USAGE$")  # closes or lists


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize("nodes", [1, 8])
def test_every_paragraph_of_a_script_has_a_reason(launcher: Launcher, nodes: int) -> None:
    job = make_job(model=load_model("llama-3.1-70b"), nodes=nodes, launch=LaunchSpec(kubernetes=(("image", "a/b:c"),)))
    candidate = make_candidate(data=nodes, tensor=8, num_layers=80)
    for file in render_launch(job, candidate, launcher=launcher):
        assert file.path in FILES
        lines, whys = file.text.splitlines(), explain_lines(file.path, file.text)
        assert len(lines) == len(whys)
        if file.path.endswith(".sh"):
            for start, paragraph in _paragraphs(lines):
                assert any(whys[start : start + len(paragraph)]), paragraph


def _paragraphs(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Runs of lines between blank ones that hold more than comments and what closes."""
    found, current = list[tuple[int, list[str]]](), list[str]()
    for place, line in enumerate([*lines, ""]):
        if line.strip():
            current.append(line)
            continue
        if any(not one.startswith("#") and not _GOES_ON.match(one.strip()) for one in current):
            found.append((place - len(current), current))
        current = []
    return found


def test_every_setting_of_the_config_is_explained_on_its_line() -> None:
    job, candidate = make_job(), make_candidate(stage=3)
    text = render_ds_config_text(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    config = render_ds_config(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    said = [why for why in explain_lines("ds_config.json", text) if why]
    assert said == [why for _, why in explain_ds_config(config)]


def test_task_says_why_fields_are_not_in_the_config() -> None:
    text = render_task_text(make_candidate(pipeline=2), job=make_job())
    lines = dict(zip((line.strip() for line in text.splitlines()), explain_lines("task.json", text)))
    assert "DeepSpeed never reads pipeline.stages" in lines['"pipeline_parallel_size": 2,']
    assert lines['"model": {'] == "the model as the planner read it"


@pytest.mark.parametrize(
    ("stage", "precision", "words"),
    [
        (0, Precision.BF16, "any other type is refused without ZeRO"),
        (1, Precision.BF16, "unsharded fp32 gradients"),
        (2, Precision.BF16, "fp32 would double the gradients' shards"),
        (3, Precision.BF16, "fp32 would double the gradients' shards"),
        (1, Precision.FP16, "fp32 would double the gradients' shards"),
        (2, Precision.FP32, "the type of the weights"),
    ],
)
def test_reason_of_the_gradients_type_is_that_of_the_stage(stage: int, precision: Precision, words: str) -> None:
    candidate = make_candidate(stage=stage, precision=precision)
    config = render_ds_config(candidate, job=make_job(), deepspeed_version=DEEPSPEED_VERSION)
    why = dict(explain_ds_config(config))["data_types.grad_accum_dtype"]
    assert words in why and ("unsharded" in why) == (stage == 1 and precision is Precision.BF16)
