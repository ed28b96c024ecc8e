"""The plan that a new one takes the place of, as it is written into the new one's `plan.yaml`. Pure."""

from __future__ import annotations

from planner.app.checkpoint_route import checkpoint_route
from planner.spec import Candidate, JobSpec, Plan
from planner.spec._record import record
from planner.spec.replan import Change, ReplanSummary, Verdict


@record
class Origin:
    """The old plan, what changed since, and what was made of its trials."""

    folder: str
    plan: Plan
    job: JobSpec
    changes: tuple[Change, ...]
    verdict: Verdict
    num_kept: int
    num_prior: int
    carried: str
    new_folder: str

    def summary(self, candidate: Candidate) -> ReplanSummary:
        """With the way of a checkpoint to the new candidate."""
        return ReplanSummary(
            from_dir=self.folder,
            old_key=self.plan.key,
            old_tokens_per_s=self.plan.promise.tokens_per_s,
            old_kind=self.plan.promise.step_time_kind,
            changes=self.changes,
            old_here=self.verdict,
            num_kept=self.num_kept,
            num_prior=self.num_prior,
            checkpoint=checkpoint_route(self.plan.candidate, candidate, job=self.job, folder=self.new_folder),
            carried=self.carried,
        )
