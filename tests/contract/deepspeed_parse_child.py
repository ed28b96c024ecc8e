"""Child program of `test_rules_against_deepspeed`: what the installed DeepSpeed says of configurations.

Reads a JSON list of configurations from standard input; writes, on the last line of standard output, for each the
error that parsing it raises ("" none), and the fields that DeepSpeed's own models have.
"""

import json
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "compile": CompileConfig,
    "tensor_parallel": TPTrainingConfig,
    "tensor_parallel.tp": TPConfig,
    "comms_logger": CommsLoggerConfig,
}


def error_of(config: dict) -> str:
    """The first line of what parsing raises; "" when it succeeds."""
    try:
        DeepSpeedConfig(config)
    except Exception as error:  # any error is the answer here
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def names_of(model: type) -> list[str]:
    """Every spelling that the model takes."""
    fields = model.model_fields.items()
    return sorted({name for name, _field in fields} | {field.alias for _name, field in fields if field.alias})


errors = [error_of(config) for config in json.load(sys.stdin)]
fields = {path: names_of(model) for path, model in MODELS.items()}
print(json.dumps({"version": deepspeed.__version__, "errors": errors, "fields": fields}))
