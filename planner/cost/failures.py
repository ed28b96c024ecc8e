"""What checkpoints and failing nodes cost a long run.

Owns the size of a checkpoint, the interval between two, and by how much a run is longer than its steps. Leaves steps to
`steptime` and what the answer is in days and money to `planner.app`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.states import moment_bytes
from planner.spec._record import record
from planner.spec.columns import FloatColumn
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.kinds import Precision
from planner.spec.model import ModelSpec

_DAY_S = 86_400.0
# 419 unexpected interruptions in 54 days of 16,384 H100, 2,048 nodes of eight: 54 x 2,048 / 419 = 264 days a node.
DEFAULT_MTBF_S = 54 * 2048 / 419 * _DAY_S
DEFAULT_MTBF_SOURCE = (
    "419 unexpected interruptions in 54 days on 2,048 nodes of 8 H100: The Llama 3 Herd of Models, arXiv 2407.21783, "
    "section 3.3.4"
)
# A parallel file system shared by all nodes gives each a part of its network; no source, meant to be replaced.
DEFAULT_WRITE_BYTES_PER_S = 2.0e9
DEFAULT_WRITE_SOURCE = "assumed: 2 GB/s a node; say what yours writes with cluster.checkpoint_write_gb_per_s"
# To notice a failure, find a spare node, start again and load: minutes in well-run clusters; no source, stated.
RESTART_S = 600.0


@record
class Failures:
    """The figures of one job on nodes of one kind. Times in seconds; MTBF and writing are of one node.

    A checkpoint holds `checkpoint_bytes`, which all nodes write together; the run waits for it.
    """

    checkpoint_bytes: float
    mtbf_s: float = DEFAULT_MTBF_S
    write_bytes_per_s: float = DEFAULT_WRITE_BYTES_PER_S
    restart_s: float = RESTART_S

    def write_s(self, nodes: FloatColumn) -> FloatColumn:
        """Seconds of one checkpoint, C = bytes / (nodes x bytes/s of a node)."""
        return np.asarray(self.checkpoint_bytes / (nodes * self.write_bytes_per_s))

    def between_s(self, nodes: FloatColumn) -> FloatColumn:
        """Seconds between failures of the whole run, M = MTBF of a node / nodes."""
        return np.asarray(self.mtbf_s / nodes)

    def interval_s(self, nodes: FloatColumn) -> FloatColumn:
        """Seconds of work between two checkpoints that lose the least: sqrt(2 C M).

        Young 1974, CACM 17(9), equation for the first-order optimum; Daly 2006, FGCS 22(3), equation 20 gives the same
        to first order, valid where C is much smaller than 2 M.
        """
        return np.asarray(np.sqrt(2.0 * self.write_s(nodes) * self.between_s(nodes)))

    def slowdown(self, nodes: FloatColumn, *, interval_s: float = 0.0) -> FloatColumn:
        """Expected time over the time of the steps: 1 + C / interval (writing) + (interval / 2 + restart) / M (work
        done again, and starting again, for each failure). `interval_s` 0: the best one."""
        interval = np.full_like(nodes, interval_s) if interval_s else self.interval_s(nodes)
        written = np.divide(self.write_s(nodes), interval, out=np.zeros_like(interval), where=interval > 0)
        return np.asarray(1.0 + written + (interval / 2.0 + self.restart_s) / self.between_s(nodes))


def failures_of(model: ModelSpec, *, training: TrainingSpec, cluster: ClusterSpec, precision: Precision) -> Failures:
    """The figures of this job; where the cluster says none, the defaults."""
    return Failures(
        checkpoint_bytes=checkpoint_bytes(model, training=training, precision=precision),
        mtbf_s=cluster.mtbf_s or DEFAULT_MTBF_S,
        write_bytes_per_s=cluster.checkpoint_write_bytes_per_s or DEFAULT_WRITE_BYTES_PER_S,
    )


def checkpoint_bytes(model: ModelSpec, *, training: TrainingSpec, precision: Precision) -> float:
    """Bytes of a DeepSpeed checkpoint: weights in the training precision (e), fp32 masters (4, in 16 bit only) and the
    optimizer's moments of every parameter."""
    optimizer = training.optimizer
    moments = moment_bytes(optimizer.name, momentum=optimizer.momentum)
    masters = 0.0 if precision is Precision.FP32 else 4.0
    num_parameters = model.traced.num_parameters if model.traced is not None else model.num_parameters
    return float(num_parameters * (precision.bytes_per_element + masters + moments))


@record
class Target:
    """What has to be done by when: `tokens` within `within_s`, failures included."""

    tokens: float
    within_s: float
    failures: Failures
    gpus_per_node: int

    def slack(self, log_tokens_per_s: FloatColumn, worlds: FloatColumn) -> FloatColumn:
        """log(time there is / expected time) on each number of GPUs: below 0 the target is missed."""
        nodes = np.ceil(worlds / self.gpus_per_node)
        needed = np.log(self.tokens / self.within_s) + np.log(self.failures.slowdown(nodes))
        return np.asarray(log_tokens_per_s - needed)
