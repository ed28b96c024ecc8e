"""The search: ask Optuna for a candidate, have it tried, make the trial durable, tell Optuna, until a reason to stop.

The trial file is the truth: `on_trial` is called, and has written the trial to the disk, before Optuna hears of it. A
kill at any moment therefore loses nothing that ended, and only the trial that was running is run again. In a shared
study each planner runs this loop; what the others tried is made durable here as well.
"""

from __future__ import annotations

from dataclasses import replace

import optuna

from planner.rundir import trial_log_name
from planner.search.belief import Guide
from planner.search.ending import reason_to_stop
from planner.search.history import Observation, observe, row_of, trials_of_machine
from planner.search.preview import expected_trial_s, spent_s
from planner.search.problem import SearchPorts, SearchProblem
from planner.search.result import SearchResult
from planner.search.samplers import open_rows, sampler_for
from planner.search.shared import Others, beating, lost_the_race, number_for
from planner.search.study import Told, ask, give_back, history_of, open_study, storage_errors, tell, told_of
from planner.search.winner import Choice, choose_winner
from planner.spec.candidate import Candidate
from planner.spec.columns import candidate_at
from planner.spec.trial import TrialRecord


class Search:
    """One running search; use `planner.search.run_search`."""

    def __init__(self, problem: SearchProblem, *, ports: SearchPorts) -> None:
        self._problem = problem
        self._ports = ports
        self._guide = Guide(problem)
        self._taken: set[int] = set()  # numbers of trials in the plan folder

    def run(self, done: tuple[TrialRecord, ...]) -> SearchResult:
        """Go on from the `done` trials until there is a reason to stop. Raises Interrupted on Ctrl-C."""
        trials = self._of_the_space(trials_of_machine(done, self._problem.machine))
        self._taken = {trial.number for trial in done}
        place = self._ports.place
        study = open_study(place, axes=self._guide.axes, truth=self._truth(trials))
        study.sampler = sampler_for(self._guide)
        others = Others(study, place=place, clock=self._ports.clock)
        while True:
            with storage_errors(place):
                read = study.get_trials(deepcopy=False)  # Keep: one moment for all that follows
                others.take_back(read)
            trials = self._with_news(trials, others.new_records(read))
            num_elsewhere, observations = others.num_running(read), history_of(read, self._guide.axes)
            stop = self._reason_to_stop(observations, trials, num_elsewhere=num_elsewhere)
            if not stop:
                trials += self._try_one(study, trials)
            elif num_elsewhere:  # what they find may change the outcome
                others.wait()
            else:
                return self._result(trials, observations, stop)

    def _of_the_space(self, trials: tuple[TrialRecord, ...]) -> tuple[TrialRecord, ...]:
        """Without those of candidates that the job does not search: somebody's own layout, tried for comparison."""
        legal = self._problem.legal
        return trials if legal is None else tuple(one for one in trials if row_of(legal, one) is not None)

    def _with_news(self, trials: tuple[TrialRecord, ...], news: tuple[TrialRecord, ...]) -> tuple[TrialRecord, ...]:
        """The trials, with those of others made durable here too. Two folders may have used one number: the later to
        arrive gets another."""
        known = {(trial.key, trial.started_at_s) for trial in trials}
        for record in news:
            if (record.key, record.started_at_s) in known or record.machine != self._problem.machine:
                continue
            trial = replace(record, number=number_for(record.number, self._taken.__contains__))
            self._keep(trials, trial)
            trials += (trial,)
        return trials

    def _reason_to_stop(
        self, observations: tuple[Observation, ...], trials: tuple[TrialRecord, ...], *, num_elsewhere: int
    ) -> str:
        worker = self._problem.worker
        own = tuple(trial for trial in trials if not worker or trial.worker in ("", worker))
        return reason_to_stop(
            self._guide,
            observations,
            num_done=len(trials) + num_elsewhere,
            spent_s=spent_s(own),
            expected_s=expected_trial_s(self._problem, done=trials),
        )

    def _try_one(self, study: optuna.Study, before: tuple[TrialRecord, ...]) -> tuple[TrialRecord, ...]:
        """The trial of one more candidate; () when another planner was faster to propose the same."""
        place, axes = self._ports.place, self._guide.axes
        proposal, row = ask(study, axes=axes, place=place)
        try:
            with storage_errors(place):
                lost = not place.is_ours_alone and lost_the_race(study, proposal, axes=axes, clock=self._ports.clock)
            if lost:
                give_back(study, proposal, place=place)
                return ()
            candidate = candidate_at(self._problem.columns, row, num_layers=self._problem.num_layers)
            with beating(proposal, place):
                trial = self._evaluate(self._next_number(proposal.number), candidate)
            self._keep(before, trial)
        except BaseException:
            give_back(study, proposal, place=place)
            raise
        tell(study, proposal, self._told(row, trial), axes=axes, place=place)
        return (trial,)

    def _next_number(self, number_in_study: int) -> int:
        """In a shared study its own numbers, which no two planners share, as far as they go on from the known ones."""
        following = max(self._taken, default=-1) + 1
        return following if self._ports.place.is_ours_alone else max(following, number_in_study)

    def _keep(self, before: tuple[TrialRecord, ...], trial: TrialRecord) -> None:
        choice = self._choice((*before, trial))
        self._ports.on_trial(trial, choice.winner if choice else None)
        self._taken.add(trial.number)

    def _evaluate(self, number: int, candidate: Candidate) -> TrialRecord:
        clock = self._ports.clock
        started_at_s, before_s = clock.unix_s(), clock.monotonic_s()
        outcome = self._ports.evaluator.evaluate(number, candidate)
        return TrialRecord(
            number=number,
            key=candidate.key,
            candidate=candidate,
            outcome=outcome,
            started_at_s=started_at_s,
            duration_s=max(clock.monotonic_s() - before_s, 0.0),
            machine=self._problem.machine,
            log_name=trial_log_name(number),
            worker=self._problem.worker,
        )

    def _truth(self, trials: tuple[TrialRecord, ...]) -> tuple[Told, ...]:
        rows = [(trial, row_of(self._problem.columns, trial)) for trial in trials]
        return tuple(self._told(row, trial) for trial, row in rows if row is not None)

    def _told(self, row: int, trial: TrialRecord) -> Told:
        observation = observe(row, trial.outcome, usable_bytes=self._problem.usable_bytes)
        return told_of(trial, observation, axes=self._guide.axes, problem=self._problem)

    def _choice(self, trials: tuple[TrialRecord, ...]) -> Choice | None:
        return choose_winner(
            trials,
            objective=self._problem.objective,
            memory_headroom_fraction=self._problem.memory_headroom_fraction,
            usable_bytes=self._problem.usable_bytes,
            target=self._problem.target,
        )

    def _result(
        self, trials: tuple[TrialRecord, ...], observations: tuple[Observation, ...], stopped_because: str
    ) -> SearchResult:
        is_open = open_rows(self._problem, observations)
        num_tried = len({seen.row for seen in observations})
        return SearchResult(
            trials=trials,
            choice=self._choice(trials),
            stopped_because=stopped_because,
            num_untried=int(is_open.sum()),
            num_pruned=len(is_open) - int(is_open.sum()) - num_tried,
            study_note=self._ports.place.note,
        )
