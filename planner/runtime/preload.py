"""Imports ahead of time what torch, DeepSpeed and transformers would import while a model is built or trained.

A trial's ranks are forked from a parent that has done so, and a rank of the reference trainer does so itself before it
starts to count its memory: so the two show the same figures.
"""

from __future__ import annotations

import importlib
import sys

# What DeepSpeed 0.19 imports only when an engine is built or a group joined: 1.2 s and 45 MB of every process, most of
# it torch.compile's machinery behind a decorator in the Muon optimizer, which every ZeRO engine imports.
LAZY_MODULES = (
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.original_muon",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.fp16.fused_optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.pipe.module",
    "setuptools",
)


def preload_deepspeed() -> None:
    """Import what DeepSpeed loads lazily."""
    for name in LAZY_MODULES:
        import_ahead(name)


def preload_model_code(model_type: str) -> None:
    """Import the module of a model family, which transformers loads lazily; nothing for a type it does not know."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    if model_type in auto.CONFIG_MAPPING_NAMES:
        name = auto.model_type_to_module_name(model_type)
        import_ahead(f"transformers.models.{name}.modeling_{name}")


def import_ahead(name: str) -> None:
    """Import a module; one that cannot be is only told of."""
    try:
        importlib.import_module(name)
    except ImportError as problem:  # a rank that needs it will fail with it, in its own log; the others do not care
        print(f"[preload] {name} could not be imported ahead: {problem}", file=sys.stderr)
