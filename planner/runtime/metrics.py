"""One rank's figures for Prometheus, served over HTTP from this process.

Owns names, labels and units of the metrics (`configs/monitoring/README.md` lists them); values are given after each
step. Bound to loopback unless the job says otherwise: the figures tell what a machine does, and nobody is asked who he
is.
"""

from __future__ import annotations

from typing import Any

from planner.errors import InputError
from planner.runtime.watch import StepHealth
from planner.spec import RunPromise, RunSpec

PREFIX = "meshplan_"
_GAUGES = {
    "allocated_bytes": "held by tensors after the last step",
    "reserved_bytes": "held by the allocator after the last step",
    "used_bytes": "most in use in the last step, context and libraries included",
    "free_bytes": "free on the device after the last step",
    "fragmentation_ratio": "share of the reserved memory that lies in split blocks nobody uses",
    "plan_bytes": "what the plan promised that the worst rank uses",
    "limit_bytes": "what this rank can use at most",
    "plan_distance_bytes": "plan_bytes less used_bytes; negative: over the plan",
    "limit_distance_bytes": "limit_bytes less used_bytes",
    "memory_growth_bytes_per_step": "slope of what stays allocated, over the last steps; 0: no growth",
    "step": "optimizer steps done since the training began",
    "step_seconds": "of the last optimizer step",
    "plan_step_seconds": "what the plan promised of a step",
    "tokens_per_second": "of all ranks together, in the last step",
    "mfu_ratio": "model FLOPs over what the devices could have computed in the last step",
    "loss": "mean training loss of the last step",
    "learning_rate": "of the last step",
    "allocator_retries": "how often the allocator gave cached blocks back to satisfy a request, since the start",
}
_PHASED = {
    "phase_peak_bytes": "most allocated in this phase of the last step",
    "phase_budget_bytes": "the job's budget of this phase",
}


class Metrics:
    """The gauges of one rank, and their server."""

    def __init__(self, run: RunSpec, promise: RunPromise, *, rank: int, local_rank: int) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        self._rank = str(rank)
        self._gauges = {name: Gauge(PREFIX + name, text, ["rank"], registry=registry) for name, text in _GAUGES.items()}
        self._phased = {
            name: Gauge(PREFIX + name, text, ["rank", "phase"], registry=registry) for name, text in _PHASED.items()
        }
        self.port = run.metrics_port + local_rank
        try:
            self._server: Any = start_http_server(self.port, addr=run.metrics_host, registry=registry)
        except OSError as problem:
            raise InputError(
                f"no metrics can be served on {run.metrics_host}:{self.port}: {problem.strerror or problem}",
                why="training.monitoring.metrics_port is local rank 0's; the other ranks of a machine take those after",
                fix="name another port or host in the job file, or leave the port out",
            ) from problem
        self._set("plan_bytes", promise.device_used_bytes)
        self._set("plan_step_seconds", promise.step_time_s)

    def _set(self, name: str, value: float) -> None:
        self._gauges[name].labels(self._rank).set(value)

    def show(self, health: StepHealth, *, step: int, loss: float, learning_rate: float) -> None:
        """The figures of the last step."""
        for name in ("allocated_bytes", "reserved_bytes", "used_bytes", "free_bytes", "fragmentation_ratio"):
            self._set(name, getattr(health, name))
        for name in ("limit_bytes", "plan_distance_bytes", "limit_distance_bytes", "step_seconds"):
            self._set(name, getattr(health, name))
        self._set("memory_growth_bytes_per_step", health.growth.slope_bytes if health.growth is not None else 0.0)
        self._set("tokens_per_second", health.tokens_per_s)
        self._set("mfu_ratio", health.mfu_ratio)
        self._set("allocator_retries", health.allocator_retries)
        self._set("step", step)
        self._set("loss", loss)
        self._set("learning_rate", learning_rate)
        for phase in health.phases:
            self._phased["phase_peak_bytes"].labels(self._rank, str(phase.phase)).set(phase.peak_bytes)
            self._phased["phase_budget_bytes"].labels(self._rank, str(phase.phase)).set(phase.budget_bytes)

    def close(self) -> None:
        """Serve no more."""
        server, thread = self._server
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)
