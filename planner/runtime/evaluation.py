"""The mean loss on a held-out token file: the same sequences every time, in the file's order, dropout off.

Owns which rank takes which sequence and how unequal shares are weighed. Leaves running the model to DeepSpeed's engine.
"""

from __future__ import annotations

import torch
from torch import distributed

from planner.runtime.data import Sample, open_held_out, stack_samples
from planner.runtime.session import TrainingSession
from planner.runtime.whole import samples_of
from planner.spec import TrialTask


class Evaluation:
    """Evaluates one session. Raises InputError when it is made, if the file cannot be read."""

    def __init__(self, session: TrainingSession, task: TrialTask) -> None:
        run = task.training.run
        tokens = open_held_out(task)
        self._source = samples_of(session.source, tokens, seed=task.training.seed)
        self._session = session
        self._batch = task.candidate.batch
        self._staged = task.candidate.layout.pipeline_parallel_size > 1
        self.num_sequences = min(tokens.num_sequences, run.eval_sequences or tokens.num_sequences)
        per_round = self._batch.micro_batch_size * self._batch.data_parallel_size
        if self._staged:  # stages exchange whole micro-batches only
            self.num_sequences = max(per_round, self.num_sequences - self.num_sequences % per_round)

    def loss(self) -> float:
        """The mean over all sequences, the same on every rank."""
        engine = self._session.engine
        engine.eval()
        with torch.no_grad():
            total = self._staged_total() if self._staged else self._plain_total()
        engine.train()
        return total

    def _rounds(self) -> list[list[int]]:
        """This rank's sequences, a list for each forward pass; as many lists on every rank."""
        micro, ranks = self._batch.micro_batch_size, self._batch.data_parallel_size
        starts = range(0, self.num_sequences, micro * ranks)
        own = self._session.data_rank * micro
        return [list(range(s + own, min(s + own + micro, self.num_sequences))) for s in starts]

    def _plain_total(self) -> float:
        sums = torch.zeros(2, dtype=torch.float64, device=self._session.device)
        for indices in self._rounds():
            batch = self._moved(stack_samples(self._source, indices or [0]))  # ZeRO-3 ranks have to go in step
            loss = self._session.engine(**batch)
            if indices:
                sums += torch.tensor([float(loss) * len(indices), len(indices)], dtype=sums.dtype, device=sums.device)
        distributed.all_reduce(sums)
        return float(sums[0] / sums[1])

    def _staged_total(self) -> float:
        losses = []
        for indices in self._rounds():
            batch = self._moved(stack_samples(self._source, [i % self.num_sequences for i in indices]))
            tokens = batch["tokens"]
            loss = self._session.engine.eval_batch(iter([(tokens, tokens)]), num_micro_batches=1)
            losses.append(float(loss))
        return sum(losses) / len(losses)

    def _moved(self, batch: Sample) -> Sample:
        return {name: value.to(self._session.device) for name, value in batch.items()}
