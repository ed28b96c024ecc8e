"""Keys and values that people write and the planner cannot honour: refused by name, with the reason.

Refusing is the rule of the house: an option without effect is never ignored. A row leaves this table when the product
can do what it asks.
"""

from __future__ import annotations

from planner.catalog.documents import Document
from planner.catalog.strict import dotted_path
from planner.errors import InputError

_LATER = "it is not searched yet; trials would not differ by it"
_FOLLOWS = "it follows from the other values"

REFUSED_KEYS: dict[tuple[str, ...], tuple[str, str]] = {
    # path: (why, fix)
    ("search", "data_parallel_size"): (
        f"{_FOLLOWS}: the GPUs divided by the tensor- and pipeline-parallel sizes",
        "list tensor_parallel_size and pipeline_parallel_size instead",
    ),
    ("search", "gradient_accumulation_steps"): (
        f"{_FOLLOWS}: global batch = micro-batch x accumulation x data-parallel size",
        "list micro_batch_size instead",
    ),
    ("search", "global_batch_size"): ("the planner never changes it", "give it once, under training"),
    ("search", "optimizer"): (_LATER, "give one optimizer, under training"),
    ("search", "sequence_parallel_size"): (_LATER, "remove it"),
    ("search", "expert_parallel_size"): (_LATER, "remove it"),
    ("search", "virtual_pipeline_size"): (_LATER, "remove it; DeepSpeed's pipeline schedule has no interleaving"),
    ("search", "tensor_sequence_parallel"): (_LATER, "remove it"),
    ("search", "zero_quantized_weights"): (_LATER, "remove it"),
    ("search", "zero_quantized_gradients"): (_LATER, "remove it"),
    ("search", "quantized_communication"): (_LATER, "remove it"),
    ("search", "communication_data_type"): (_LATER, "remove it"),
    ("training", "micro_batch_size"): ("it is searched, not given", "give it under search: micro_batch_size"),
    ("training", "gradient_accumulation_steps"): (_FOLLOWS, "give global_batch_size under training"),
    ("training", "precision"): ("it is an axis of the search", "give it under search: precision"),
    ("training", "batch_size"): ("which batch is not said", "give global_batch_size, sequences per optimizer step"),
}


def refuse_what_is_not_there_yet(document: Document) -> None:
    """Raise InputError for the first key of the document that the product cannot honour."""
    for path, (why, fix) in REFUSED_KEYS.items():
        section = document.value.get(path[0])
        if isinstance(section, dict) and path[1] in section:
            raise InputError(f"{document.place(path)}: {dotted_path(path)} cannot be set", why=why, fix=fix)
