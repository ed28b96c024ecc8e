"""A training session: the model and DeepSpeed engine of one `TrialTask`, stepped one optimizer step at a time.

Owns the step (feeding, forward, backward, optimizer, timing, counting what was consumed) and checkpoints. Trials,
validation and the reference trainer all train through it. Leaves building the model to `building`, tokens to `data`.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from torch import distributed

from planner.runtime.data import micro_batches, open_samples, sample_indices
from planner.runtime.schedule import WarmupCosine
from planner.spec import Phase, TrialTask
from planner.spec._record import record


@record
class StepResult:
    """One optimizer step. `loss`: mean over the global batch, the same on every rank. Times are this rank's; they are
    0 where the engine does not separate the phases (pipelines)."""

    loss: float
    forward_s: float
    backward_s: float
    optimizer_s: float


class TrainingSession:
    """See the module's text. `engine` is DeepSpeed's own."""

    def __init__(self, task: TrialTask, *, engine: Any, on_phase: Callable[[Phase], None]) -> None:
        self.engine = engine
        self._task = task
        self._on_phase = on_phase
        self._sequences_per_step = 0
        self._source = open_samples(
            task.training.data,
            seed=task.training.seed,
            seq_len=task.training.seq_len,
            vocab_size=task.model.vocab_size,
        )

    @property
    def sequences_per_step(self) -> int:
        """Sequences that all ranks together consumed in the last optimizer step, counted as they were fed."""
        return self._sequences_per_step

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps skipped because a gradient overflowed."""
        return int(self.engine.skipped_steps)

    @property
    def steps_done(self) -> int:
        """Optimizer steps since the training began, those before a resume and skipped ones included."""
        return int(self.engine.global_steps)

    def train_step(self) -> StepResult:
        """Run one optimizer step: all its micro-batches."""
        device = get_accelerator()
        forward_s = backward_s = optimizer_s = 0.0
        losses: list[torch.Tensor] = []
        fed = 0
        for tokens in self._micro_batches():
            fed += len(tokens)
            self._on_phase(Phase.FORWARD)
            device.synchronize()
            started = time.perf_counter()
            loss = self.engine(tokens)
            device.synchronize()
            forwarded = time.perf_counter()
            self._on_phase(Phase.BACKWARD)
            self.engine.backward(loss)
            device.synchronize()
            backwarded = time.perf_counter()
            self._on_phase(Phase.OPTIMIZER_STEP)
            self.engine.step()
            device.synchronize()
            forward_s += forwarded - started
            backward_s += backwarded - forwarded
            optimizer_s += time.perf_counter() - backwarded
            losses.append(loss.detach().float())
        mean = torch.stack(losses).mean()
        self._sequences_per_step = self._total(fed)
        distributed.all_reduce(mean)
        mean /= distributed.get_world_size()
        return StepResult(loss=mean.item(), forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s)

    def _micro_batches(self) -> Iterator[torch.Tensor]:
        indices = sample_indices(
            self._task.candidate.batch, step=self.steps_done, data_parallel_rank=distributed.get_rank()
        )
        return micro_batches(self._source, indices, self.engine.device)

    def _total(self, count: int) -> int:
        counted = torch.tensor(count, device=self.engine.device)
        distributed.all_reduce(counted)
        return int(counted.item())

    def save_checkpoint(self, directory: Path | str) -> None:
        """Write DeepSpeed's own checkpoint into the directory; all ranks call it."""
        self._on_phase(Phase.CHECKPOINT_SAVE)
        self.engine.save_checkpoint(str(directory))

    def load_checkpoint(self, directory: Path | str) -> bool:
        """Go on from the newest checkpoint in the directory; False when there is none. All ranks call it."""
        self._on_phase(Phase.CHECKPOINT_LOAD)
        path, _state = self.engine.load_checkpoint(str(directory))
        return path is not None

    def close(self) -> None:
        """Let go of the model and the engine, so that their memory can be reused."""
        self.engine.destroy()
        self.engine = None
        gc.collect()


class _CausalLM(torch.nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        settings = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        self.model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


def build_session(task: TrialTask, *, on_phase: Callable[[Phase], None]) -> TrainingSession:
    """Build model and engine on this rank; `start_distributed` comes first."""
    on_phase(Phase.BUILD_MODEL)
    torch.manual_seed(task.training.seed)
    model = _CausalLM(json.loads(task.model.config_json)).train()
    on_phase(Phase.BUILD_ENGINE)
    engine, *_rest = deepspeed.initialize(
        model=model,
        model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        config=json.loads(task.ds_config_json),
        lr_scheduler=lambda optimizer: WarmupCosine(optimizer, task.training),
    )
    return TrainingSession(task, engine=engine, on_phase=on_phase)
