"""What the matrices of an adapter are called; apart from `lora`, which needs what needs these names."""

from __future__ import annotations

DOWN, UP = "lora_down", "lora_up"


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return name.endswith((DOWN, UP))
