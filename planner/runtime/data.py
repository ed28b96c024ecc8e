"""The sequences of the job: which sample index each rank draws, and the tokens of a sample.

Sample i of optimizer step t has the number `t * global_batch_size + i` in every layout, and its tokens depend on
nothing but the seed and that number. So all layouts consume the same samples in a step, only spread differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch

from planner.errors import InputError
from planner.runtime.permutation import permuted
from planner.spec import BatchSplit, DataSpec, TrialTask


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part, the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sample_indices(batch: BatchSplit, *, step: int, data_parallel_rank: int) -> list[list[int]]:
    """The sample numbers of one rank in one optimizer step: a list for each micro-batch."""
    start = step * batch.global_batch_size
    micro, ranks = batch.micro_batch_size, batch.data_parallel_size
    first_of = [(number * ranks + data_parallel_rank) * micro for number in range(batch.gradient_accumulation_steps)]
    return [list(range(start + first, start + first + micro)) for first in first_of]


Sample: TypeAlias = dict[str, torch.Tensor]  # the model's keyword arguments, without the batch dimension, on CPU


class SampleSource(Protocol):
    """Gives one sample, by its number."""

    def sample(self, index: int) -> Sample:
        """The same sample in every layout and at every time."""
        ...


class TokenSource(Protocol):
    """Gives the tokens of one sample, by its number."""

    def tokens(self, index: int) -> torch.Tensor:
        """`seq_len` token ids (int64, CPU)."""
        ...


class TokenSamples:
    """Samples for a causal language model: tokens, which are their own labels."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def sample(self, index: int) -> Sample:
        return {"tokens": self._source.tokens(index)}


class SyntheticTokens:
    """Random tokens, the low ids more often than the high, so that there is something to learn and losses fall."""

    def __init__(self, *, seed: int, seq_len: int, vocab_size: int) -> None:
        self._seed = seed
        self._seq_len = seq_len
        self._vocab_size = vocab_size

    def tokens(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "sample", index))
        uniform = torch.rand(self._seq_len, generator=generator, dtype=torch.float64)
        return (uniform.square() * self._vocab_size).long()


class TokenFile:
    """A memory-mapped file of little-endian token ids, cut into sequences that are visited in a seeded order.

    Each pass over the file has its own order, which takes no memory however large the file is; without `shuffled` they
    come as they lie. A remainder shorter than a sequence is not used.
    """

    def __init__(self, data: DataSpec, *, seed: int, seq_len: int, vocab_size: int, shuffled: bool = True) -> None:
        path = Path(data.path)
        if not path.is_file():
            raise InputError(
                f"the token file {data.path!r} does not exist",
                why="training.data.path names the file that the trainer reads tokens from",
                fix="write the path as this machine sees it, or leave it out for synthetic tokens",
            )
        count = path.stat().st_size // data.token_bytes  # a torn last token is not read
        self._tokens: np.memmap = np.memmap(path, dtype=f"<u{data.token_bytes}", mode="r", shape=(count,))
        self._seed = seed
        self._shuffled = shuffled
        self._seq_len = seq_len
        self._vocab_size = vocab_size
        self._num_sequences = len(self._tokens) // seq_len
        if not self._num_sequences:
            raise InputError(
                f"the token file {data.path!r} holds {len(self._tokens)} tokens, fewer than one sequence of {seq_len}",
                why="a sample is one sequence",
                fix="use a longer file, a smaller seq_len, or check token_bytes",
            )

    @property
    def num_sequences(self) -> int:
        """Whole sequences in the file."""
        return self._num_sequences

    def tokens(self, index: int) -> torch.Tensor:
        epoch, position = divmod(index, self._num_sequences)
        if self._shuffled:
            position = permuted(position, size=self._num_sequences, seed=derived_seed(self._seed, "order", epoch))
        start = position * self._seq_len
        ids = torch.from_numpy(self._tokens[start : start + self._seq_len].astype(np.int64))
        if int(ids.max()) >= self._vocab_size:
            raise InputError(
                f"the token file holds the id {int(ids.max())}, but the model's vocabulary ends at {self._vocab_size}",
                why="the file was made with another tokenizer, or token_bytes is not what it was written with",
                fix="set training.data.token_bytes to 2 or 4 as the file was written, or use the model's tokenizer",
            )
        return ids


def open_tokens(task: TrialTask) -> TokenSource:
    """The job's token file, or synthetic tokens when it names none."""
    training = task.training
    seed, seq_len, vocab_size = training.seed, training.seq_len, task.model.vocab_size
    if training.data.path:
        return TokenFile(training.data, seed=seed, seq_len=seq_len, vocab_size=vocab_size)
    return SyntheticTokens(seed=seed, seq_len=seq_len, vocab_size=vocab_size)


def open_held_out(task: TrialTask) -> TokenFile:
    """The file that the job evaluates on, in its own order."""
    training = task.training
    data = DataSpec(path=training.run.eval_path, token_bytes=training.data.token_bytes)
    return TokenFile(
        data, seed=training.seed, seq_len=training.seq_len, vocab_size=task.model.vocab_size, shuffled=False
    )


def stack_samples(source: SampleSource, indices: list[int]) -> Sample:
    """One micro-batch, batch first, on CPU."""
    samples = [source.sample(index) for index in indices]
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def micro_batches(source: SampleSource, indices: list[list[int]], device: torch.device) -> Iterator[Sample]:
    """The micro-batches of one optimizer step, batch first, on the device."""
    for micro in indices:
        batch = stack_samples(source, micro)
        yield {name: value.to(device, non_blocking=True) for name, value in batch.items()}
