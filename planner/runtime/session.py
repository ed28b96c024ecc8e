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
from torch import distributed

from planner.runtime.checkpoint_files import OWN_PREFIX, complete_checkpoint
from planner.runtime.checkpoints import load_checkpoint, save_checkpoint
from planner.runtime.data import Sample, SampleSource, derived_seed, micro_batches, sample_indices
from planner.runtime.fresh_optimizer import take_back_setup_step
from planner.runtime.gradient_norm import mark_gradients
from planner.runtime.grid import TensorGroup, coordinates_of, make_grid, require_world, tensor_group_of
from planner.runtime.models import build_model
from planner.runtime.optimizer_handover import settle_loaded_optimizer
from planner.runtime.prefetch import Prefetcher
from planner.runtime.schedule import WarmupCosine
from planner.runtime.whole import FactorySamples
from planner.spec import Phase, Precision, TorchCompile, TrialTask
from planner.spec._record import record


@record
class StepResult:
    """One optimizer step. `loss`: mean over the global batch, the same on every rank. Times are this rank's; they are
    0 where the engine does not separate the phases (pipelines)."""

    loss: float
    forward_s: float
    backward_s: float
    optimizer_s: float


class _StopWatch:
    """Adds up what each phase took. On a GPU its marks are events in the device's queue: waiting for the device at each
    would keep the host from running ahead, and slow the very step that is measured."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = []

    def mark(self, ending: str) -> None:
        """The phase called `ending` ends here; "" where none was running."""
        if not torch.cuda.is_initialized():
            self._marks.append((ending, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((ending, event))

    def spent_s(self, phase: str) -> float:
        """Seconds of one phase in all. On a GPU the device must have come to the last mark."""
        pairs = zip(self._marks, self._marks[1:])
        return sum(_between_s(began, ended) for (_, began), (ending, ended) in pairs if ending == phase)


def _between_s(began: Any, ended: Any) -> float:
    return float(ended - began) if isinstance(began, float) else float(began.elapsed_time(ended)) / 1e3


class TrainingSession:
    """See the module's text. `engine` is DeepSpeed's own, `source` gives the samples."""

    def __init__(
        self, task: TrialTask, *, engine: Any, source: SampleSource, on_phase: Callable[[Phase], None], grid: Any = None
    ) -> None:
        self._grid = grid
        self.engine = engine
        self.source = source
        self._task = task
        self._on_phase = on_phase
        self._place = coordinates_of(distributed.get_rank(), task.candidate.layout)
        self._fed = 0
        self._sequences_per_step = 0
        self._prefetcher: Prefetcher | None = None
        self._asked_settings: dict[str, Any] = {}  # of the optimizer, before a checkpoint overrules them

    def prefetch(self) -> None:
        """Make micro-batches ahead of their use from now on. A factory's are not: its code may share random state with
        the model's."""
        if not isinstance(self.source, FactorySamples):
            self._prefetcher = Prefetcher(self.source, self._indices, self.device)

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
        self._fed = 0
        self._seed_dropout()
        staged = self._task.candidate.layout.pipeline_parallel_size > 1
        result = self._pipeline_step() if staged else self._plain_step()
        self._sequences_per_step = self._total(self._fed)
        return result

    def _seed_dropout(self) -> None:
        """Dropout depends on the step (so that a resume draws what would have come), differs between data-parallel
        ranks and stages, and is the same on tensor-parallel ranks, whose replicated activations must stay equal."""
        place = self._place
        seed = derived_seed(self._task.training.seed, "dropout", self.steps_done, place.data_rank, place.stage)
        torch.manual_seed(seed)

    def _plain_step(self) -> StepResult:
        watch = _StopWatch()
        losses: list[torch.Tensor] = []
        for batch in self._micro_batches():
            self._on_phase(Phase.FORWARD)
            watch.mark("")
            loss = self.engine(**batch)
            watch.mark("forward")
            self._on_phase(Phase.BACKWARD)
            self.engine.backward(loss)
            watch.mark("backward")
            self._on_phase(Phase.OPTIMIZER_STEP)
            self.engine.step()
            watch.mark("optimizer")
            losses.append(loss.detach().float())
        mean = torch.stack(losses).mean()
        # Tensor-parallel ranks hold the same loss, so the mean over all ranks is the mean over data-parallel ranks.
        distributed.all_reduce(mean)
        mean /= distributed.get_world_size()
        loss = mean.item()  # Keep before the watch is read: it waits for the device
        return StepResult(
            loss=loss,
            forward_s=watch.spent_s("forward"),
            backward_s=watch.spent_s("backward"),
            optimizer_s=watch.spent_s("optimizer"),
        )

    def _pipeline_step(self) -> StepResult:
        self._on_phase(Phase.TRAIN_BATCH)
        # The first stage takes the tokens as input, the last as labels; the others take nothing.
        loss = self.engine.train_batch(
            data_iter=((batch["tokens"], batch["tokens"]) for batch in self._micro_batches())
        )
        return StepResult(loss=float(loss.item()), forward_s=0.0, backward_s=0.0, optimizer_s=0.0)

    def _micro_batches(self) -> Iterator[Sample]:
        place, step = self._place, self.steps_done
        if self._prefetcher is None:
            batches = micro_batches(self.source, self._indices(step), self.engine.device)
        else:
            batches = self._prefetcher.batches(step)
        for batch in batches:
            if place.tensor_rank == 0 and place.stage == 0:  # other ranks are fed the same sequences
                self._fed += len(next(iter(batch.values())))
            yield batch

    def _indices(self, step: int) -> list[list[int]]:
        batch = self._task.candidate.batch
        return sample_indices(batch, step=step, data_parallel_rank=self._place.data_rank)

    def _total(self, count: int) -> int:
        counted = torch.tensor(count, device=self.engine.device)
        distributed.all_reduce(counted)
        return int(counted.item())

    @property
    def learning_rate(self) -> float:
        """Of the coming optimizer step, of the first parameter group."""
        return float(self.engine.get_lr()[0])

    @property
    def data_rank(self) -> int:
        """This rank's place among those that take different sequences."""
        return self._place.data_rank

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.device(self.engine.device)

    @property
    def tensor_group(self) -> TensorGroup:
        """The ranks that split this rank's matrices with it."""
        layout = self._task.candidate.layout
        grid = self.engine.grid if layout.pipeline_parallel_size > 1 else self._grid
        return tensor_group_of(grid)

    def ignored_settings(self) -> tuple[str, ...]:
        """After a load: what the config says of the optimizer and the checkpoint overrules, in words."""
        held = self._optimizer_settings()
        return tuple(
            f"note: {name} {asked} of the job is ignored: a resumed run keeps the checkpoint's {held[name]}"
            for name, asked in self._asked_settings.items()
            if name in held and _differs(asked, held[name])
        )

    def _optimizer_settings(self) -> dict[str, Any]:
        """Of the first parameter group; the rate is the highest of the schedule."""
        group = self.engine.optimizer.param_groups[0]
        settings = {f"optimizer.{name}": group[name] for name in ("betas", "weight_decay", "momentum") if name in group}
        return {"optimizer.lr": self.engine.lr_scheduler.peak, **settings}

    def save_checkpoint(self, directory: Path | str, *, tag: str | None = None, names_latest: bool = True) -> None:
        """Write a checkpoint into the directory, DeepSpeed's own with what `checkpoints` adds; all ranks call it. With
        `names_latest` it is the newest from now on; otherwise whoever called says so once it is whole."""
        self._on_phase(Phase.CHECKPOINT_SAVE)
        name = tag or f"{OWN_PREFIX}{self.steps_done}"
        save_checkpoint(self.engine, self._task, Path(directory), name)
        if names_latest:
            if distributed.get_rank() == 0:
                complete_checkpoint(Path(directory), name)
            distributed.barrier()  # Keep: nobody may look for the newest before it is named

    def load_checkpoint(self, directory: Path | str) -> bool:
        """Go on from the newest checkpoint in the directory; False when there is none. All ranks call it.

        The next step draws the samples that would have come next. Raises InputError when the checkpoint is gone,
        damaged, of another layout, or of a run whose samples differ.
        """
        self._on_phase(Phase.CHECKPOINT_LOAD)
        self._asked_settings = self._optimizer_settings()
        found = load_checkpoint(self.engine, self._task, Path(directory))
        if found:
            settle_loaded_optimizer(self.engine.optimizer)
        return found

    def close(self) -> None:
        """Let go of the model and the engine, so that their memory can be reused."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self.engine.destroy()
        self.engine = None
        gc.collect()


def _differs(asked: Any, held: Any) -> bool:
    pairs = zip(asked, held) if isinstance(asked, (list, tuple)) else [(asked, held)]
    return any(abs(float(one) - float(other)) > 1e-12 + 1e-6 * abs(float(one)) for one, other in pairs)


def build_session(task: TrialTask, *, on_phase: Callable[[Phase], None]) -> TrainingSession:
    """Build model and engine on this rank; `start_distributed` comes first.

    Raises InputError when the layout does not fit the processes started, or asks of the model what it cannot do.
    """
    require_world(task.candidate.layout)
    ds_config = json.loads(task.ds_config_json)
    on_phase(Phase.BUILD_MODEL)
    grid = make_grid(task.candidate.layout) if task.candidate.layout.pipeline_parallel_size == 1 else None
    built = build_model(task, ds_config=ds_config, grid=grid)
    model = built.module.train()
    if task.candidate.zero_stage == 0 and task.candidate.precision is not Precision.FP32:
        mark_gradients(model)
    on_phase(Phase.BUILD_ENGINE)
    engine, *_rest = deepspeed.initialize(
        model=model,
        model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        config=ds_config,
        mpu=grid,
        lr_scheduler=lambda optimizer: WarmupCosine(optimizer, task.training),
    )
    take_back_setup_step(engine.optimizer)
    if task.candidate.tuning.torch_compile is TorchCompile.WHOLE:
        engine.compile()
    return TrainingSession(task, engine=engine, source=built.source, on_phase=on_phase, grid=grid)
