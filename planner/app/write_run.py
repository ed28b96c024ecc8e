"""What a plan lets its run expect, from its promise and its estimate. Pure."""

from __future__ import annotations

from planner.spec import Estimate, Promise, Provenance, RunPromise


def run_promise(promise: Promise, estimate: Estimate) -> RunPromise:
    """For `task.json`: the trainer's log, preflight and metrics."""
    return RunPromise(
        device_used_bytes=promise.device_used_bytes,
        usable_bytes=promise.usable_bytes,
        step_time_s=promise.step_time_s,
        ideal_step_s=estimate.mfu_fraction * estimate.step_time_s,
        is_measured=promise.memory_kind is Provenance.MEASURED,
    )
