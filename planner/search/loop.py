"""The search: ask Optuna for a candidate, have it tried, make the trial durable, tell Optuna, until a reason to stop.

The trial file is the truth: `on_trial` is called, and has written the trial to the disk, before Optuna hears of it. A
kill at any moment therefore loses nothing that ended, and only the trial that was running is run again.
"""

from __future__ import annotations

import optuna

from planner.rundir import trial_log_name
from planner.search.belief import Guide
from planner.search.ending import reason_to_stop
from planner.search.history import Observation, observe, row_of, trials_of_machine
from planner.search.preview import expected_trial_s, spent_s
from planner.search.problem import SearchPorts, SearchProblem
from planner.search.result import SearchResult
from planner.search.samplers import open_rows, sampler_for
from planner.search.study import Told, ask, give_back, open_study, read_history, tell, told_of
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

    def run(self, done: tuple[TrialRecord, ...]) -> SearchResult:
        """Go on from the `done` trials until there is a reason to stop. Raises Interrupted on Ctrl-C."""
        trials = trials_of_machine(done, self._problem.machine)
        next_number = max((trial.number for trial in done), default=-1) + 1
        study = open_study(self._ports.place, axes=self._guide.axes, truth=self._truth(trials))
        study.sampler = sampler_for(self._guide)
        while True:
            observations = read_history(study, self._guide.axes)
            stop = self._reason_to_stop(observations, trials)
            if stop:
                return self._result(trials, observations, stop)
            trials += (self._try_one(study, next_number, trials),)
            next_number += 1

    def _reason_to_stop(self, observations: tuple[Observation, ...], trials: tuple[TrialRecord, ...]) -> str:
        return reason_to_stop(
            self._guide,
            observations,
            num_done=len(trials),
            spent_s=spent_s(trials),
            expected_s=expected_trial_s(self._problem, done=trials),
        )

    def _try_one(self, study: optuna.Study, number: int, before: tuple[TrialRecord, ...]) -> TrialRecord:
        place = self._ports.place
        proposal, row = ask(study, axes=self._guide.axes, place=place)
        try:
            candidate = candidate_at(self._problem.columns, row, num_layers=self._problem.num_layers)
            trial = self._evaluate(number, candidate)
        except KeyboardInterrupt:
            give_back(study, proposal, place=place)
            raise
        choice = self._choice((*before, trial))
        self._ports.on_trial(trial, choice.winner if choice else None)
        tell(study, proposal, self._told(row, trial), place=place)
        return trial

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
