"""`torch.compile` for layers: each decoder layer is compiled by itself, so that equal layers share what was compiled.

Owns how a function is compiled and that none silently runs uncompiled. Where the whole model is compiled, DeepSpeed's
`engine.compile()` does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

# Variants of one function before torch gives up on it and runs it as it is, without a word. Layers that torch cannot
# tell to be alike are variants; 8 (torch's own limit) is less than the layers of any model.
_VARIANTS_PER_LAYER = 4


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled at its first call, for the very shapes it is called with."""
    wrapped: Callable[..., Any] = torch.compile(function, dynamic=False)
    return wrapped


def allow_variants(num_layers: int) -> None:
    """Let every layer of the model have variants of its own before torch stops compiling them."""
    config: Any = importlib.import_module("torch._dynamo.config")
    wanted = _VARIANTS_PER_LAYER * max(num_layers, 1)
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, name, max(getattr(config, name), wanted))
