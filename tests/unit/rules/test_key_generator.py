"""The generator of the table of keys, on two small releases that hold each form a key is read in."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tools.read_deepspeed_keys import TARGET, history, read_release, render

CONFIG = """
from .constants import *

def get_pipeline_config(param_dict):
    config = {"stages": "auto", "pipe_partitioned": True}
    for key, val in param_dict.get("pipeline", {}).items():
        config[key] = val
    return config

def get_steps(param_dict):
    return get_scalar_param(param_dict, STEPS, STEPS_DEFAULT)

def get_bf16(param_dict):
    for key in [BF16, BFLOAT16]:
        if key in param_dict.keys():
            return get_scalar_param(param_dict[key], ENABLED, False)
"""
CONSTANTS = '''
STEPS = """how it is written"""
STEPS = "steps_per_print"
BF16 = "bf16"
BFLOAT16 = "bfloat16"
ENABLED = "enabled"
GRADIENT_CLIPPING_DEFAULT = {clipping}
'''
ZERO = """
class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    stage: int = 0
    prefetch_bucket_size: int = Field(pp_int(5e7), ge=0, alias="stage3_prefetch_bucket_size")
    {more}
"""


def write_release(folder: Path, version: str, *, clipping: str, more: str) -> Path:
    root = folder / f"deepspeed-{version}" / "deepspeed"
    for path, text in (
        ("runtime/config.py", CONFIG),
        ("runtime/constants.py", CONSTANTS.format(clipping=clipping)),
        ("runtime/zero/config.py", ZERO.format(more=more)),
        ("runtime/pipe/engine.py", "self._config.pipeline['use_reentrant']"),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root.parent


def test_keys_spans_and_drifted_defaults_are_read_out_of_sources(tmp_path: Path) -> None:
    old = read_release(write_release(tmp_path, "1.0.0", clipping="0.", more="mics: int = -1"))
    new = read_release(write_release(tmp_path, "1.1.0", clipping="1.0", more="zenflow: bool = False"))
    found = history([old, new])
    zero = found["keys"]["zero_optimization"]  # type: ignore[index]
    assert zero["stage"] == zero["stage3_prefetch_bucket_size"] == zero["prefetch_bucket_size"] == [["", ""]]
    assert (zero["mics"], zero["zenflow"]) == ([["", "1.1.0"]], [["1.1.0", ""]])
    top = found["keys"][""]  # type: ignore[index]
    assert {"steps_per_print", "bf16", "bfloat16", "pipeline", "zero_optimization"} <= set(top)
    assert found["keys"]["bf16"] == {"enabled": [["", ""]]}  # type: ignore[index]
    assert set(found["keys"]["pipeline"]) == {"stages", "pipe_partitioned", "use_reentrant"}  # type: ignore[index]
    assert found["strict"] == {"zero_optimization": [["", ""]]}
    assert found["defaults"] == {"gradient_clipping": [["1.0.0", "0.0"], ["1.1.0", "1.0"]]}


def test_the_data_that_is_written_holds_it_all(tmp_path: Path) -> None:
    release = read_release(write_release(tmp_path, "1.0.0", clipping="0.", more="mics: int = -1"))
    found = history([release])
    assert json.loads(render(found)) == found


def test_the_data_in_use_is_as_the_generator_writes_it() -> None:
    text = TARGET.read_text(encoding="utf-8")
    assert render(json.loads(text)) == text
