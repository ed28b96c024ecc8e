"""Runs trials and says how they ended: what this machine is, the warm worker and its pool, and outcomes.

Owns starting and ending the worker program and turning what its ranks left into an `Outcome`. Leaves running models to
`planner.runtime` (a child program) and what to try to `planner.search`.
"""

from planner.trial.classify import TrialFacts, classify_trial
from planner.trial.machine import Machine, probe_cpu, probe_machine
from planner.trial.packages import installed_packages
from planner.trial.pool import WarmPool

__all__ = ["Machine", "TrialFacts", "WarmPool", "classify_trial", "installed_packages", "probe_cpu", "probe_machine"]
