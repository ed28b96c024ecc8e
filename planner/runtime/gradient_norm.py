"""Makes every gradient norm count each parameter once, whichever of DeepSpeed's optimizers computes it.

DeepSpeed 0.19.8 decides by attributes of a parameter: `model_parallel` (counted on this rank although it is not the
first of its model-parallel group) and `ds_pipe_replicated` (a tied copy, counted on another stage). Its optimizers do
not read them alike:

- ZeRO 1-3 (zero/stage_1_and_2.py, stage3.py): beyond tensor-parallel rank 0 only what says `model_parallel`.
- fp32 without ZeRO (runtime/utils.py `clip_grad_norm_`): the same, but beyond rank 0 of tensor x pipeline, and it does
  not know `ds_pipe_replicated`. So the first tensor-parallel rank of each stage says `model_parallel` for all it
  holds, and a tied copy says it is not.
- fp16 and bf16 without ZeRO (fp16/unfused_optimizer.py): looks for the attributes on the gradients, which have none;
  shards beyond rank 0 then go missing and clipping is too weak. So gradients are given their parameter's attributes.
"""

from __future__ import annotations

from torch import nn


def mark_counted(parameter: nn.Parameter, *, is_shard: bool, tensor_rank: int) -> None:
    """Say whether this rank counts the parameter in gradient norms."""
    parameter.model_parallel = is_shard or tensor_rank == 0


def unmark_tied_copies(model: nn.Module) -> None:
    """Leave the second copy of a tied parameter out of gradient norms."""
    for parameter in model.parameters():
        if getattr(parameter, "ds_pipe_replicated", False):
            parameter.model_parallel = False


def mark_gradients(model: nn.Module) -> None:
    """Give each gradient, as it is made, the attributes of its parameter."""

    def mark(parameter: nn.Parameter) -> None:
        parameter.grad.model_parallel = getattr(parameter, "model_parallel", True)
        parameter.grad.ds_pipe_replicated = getattr(parameter, "ds_pipe_replicated", False)

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(mark)
