"""When a running trial cannot win any more: the step time beyond which it need not go on. Pure."""

from __future__ import annotations

from planner.spec.candidate import Candidate
from planner.spec.kinds import Objective
from planner.spec.trial import Measured, TrialRecord

# A trial is given up when its steps take this much longer than the best trial's would have to: far beyond what two
# runs of one candidate differ by (scoring.RUN_TO_RUN_FRACTION), so that no winner is lost to a slow first step.
HOPELESS_FACTOR = 1.3


def hopeless_step_s(candidate: Candidate, best: TrialRecord | None, objective: Objective) -> float:
    """Seconds per step above which `candidate` cannot beat `best`; 0 where that cannot be said.

    All candidates of a job move the same tokens in a step. For `cost` a candidate on fewer GPUs may take longer in
    proportion; fewer GPUs always win for `fewest_gpus`; what `deadline` prefers depends on more than two step times.
    """
    if best is None or not isinstance(best.outcome, Measured) or objective is Objective.DEADLINE:
        return 0.0
    own, other = candidate.layout.world_size, best.candidate.layout.world_size
    if objective is Objective.FEWEST_GPUS and own < other:
        return 0.0
    share = other / own if objective is Objective.COST else 1.0
    return best.outcome.step_time_s * share * HOPELESS_FACTOR
