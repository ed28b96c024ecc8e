"""The steps of planning, from a resolved job to a plan folder whose files have run; `plan` and `replan` take them.

Owns the order of the steps. What is decided is pure and elsewhere: the candidates (`draft`), the choice (`selection`),
the gates (`validate`), the folder's contents (`write`).
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from planner.app.ability import Ability, decide_trials
from planner.app.deadline import refuse_hopeless, refuse_missed
from planner.app.draft import Draft, draft_plan, outline_search, search_problem
from planner.app.emulation import EmulatedEvaluator, Stage
from planner.app.fallbacks import plan_fallbacks
from planner.app.final_trial import PROFILE_DIR, Finals, with_final_trial
from planner.app.missing_script import refuse_missing_script
from planner.app.origin import Origin
from planner.app.pin import Pinned, find_pinned
from planner.app.pin_trial import TriedPin, try_pinned
from planner.app.progress import Progress, SearchOutline
from planner.app.refinement import in_two_looks, second_look
from planner.app.remeasure import close_race, measure_again
from planner.app.report_input import told_trials
from planner.app.requests import PlanRequest, PlanResult
from planner.app.selection import Selection, calibrate, choices_by_model, choices_by_trials
from planner.app.survive import Survival, plan_survival
from planner.app.survivors import require_survivable
from planner.app.trials import TrialEvaluator, open_pool
from planner.app.validate import validate_selection
from planner.app.write import PlanParts, refuse_unlaunchable, write_plan_folder
from planner.cost import Calibration
from planner.emit import as_reference, following_notes
from planner.errors import InputError, NotExpressible, TrialsUnavailable
from planner.jobfile import dump_job, parse_pin
from planner.report.units import plural
from planner.report.wording import short_candidate
from planner.rundir import RunDir, names
from planner.search import (
    Evaluator,
    SearchPorts,
    SearchProblem,
    SearchResult,
    StudyPlace,
    run_search,
    shared_trials,
    study_place,
)
from planner.space import LocalAxis, local_axes
from planner.spec import JobSpec, Measured, TrialMode, TrialPolicy, TrialRecord, ValidationStep
from planner.spec._record import record
from planner.trial import Machine, WarmPool
from planner.trial.leak import suspected_leak_bytes_per_step

# Choices that may fail validation before the planner gives up: one failing is bad luck, three are a wrong environment.
MAX_CHOICES = 3


@record
class Earlier:
    """What an earlier plan of the job teaches: `trials` hold as they are, `calibration` is what the others say.

    Both are empty without an earlier plan."""

    trials: tuple[TrialRecord, ...] = ()
    calibration: Calibration = Calibration()
    origin: Origin | None = None

    def enlarged(self, policy: TrialPolicy) -> TrialPolicy:
        """The limits of a search that is given these trials beside its own."""
        spent_s = sum(trial.duration_s for trial in self.trials)
        return replace(
            policy,
            max_trials=policy.max_trials + len(self.trials),
            time_budget_s=policy.time_budget_s + spent_s,
        )


@record
class Planning:
    """One planning: what it works on and whom it tells."""

    request: PlanRequest
    job: JobSpec
    machine: Machine
    ability: Ability
    draft: Draft
    problem: SearchProblem
    console: Progress
    pinned: Pinned | None = None
    earlier: Earlier = Earlier()
    uses: tuple[str, ...] = ()  # of a mixed cluster, all that were looked at, in words

    @property
    def runs_trials(self) -> bool:
        return self.ability.mode is not TrialMode.NONE


def prepare(
    request: PlanRequest, *, console: Progress, job: JobSpec, machine: Machine, earlier: Earlier | None = None
) -> Planning:
    """Everything before the first trial: which trials can run here, the candidates, what the model says of them."""
    pin = parse_pin(request.pin) if request.pin else None
    earlier = earlier or Earlier()
    for note in following_notes(job.launch):
        console.note(note)
    _tell_long_sequences(job, console)
    ability = decide_trials(job, machine)
    if job.trials.max_trials == 0 and job.trials.mode is TrialMode.AUTO and not request.resume:
        ability = Ability(mode=TrialMode.NONE, note="max_trials is 0: every number is the model's")
    if ability.mode is not TrialMode.NONE:
        _refuse_missing_data(job)
    refuse_missing_script(job, job_path=request.job_path, mode=ability.mode, console=console)
    if ability.mode is TrialMode.NONE and request.join:
        raise TrialsUnavailable(
            "this machine cannot join a study",
            why=f"to join is to run trials; {ability.note}",
            fix="join from the machine that the job is for",
        )
    _refuse_profile_of_nothing(request, job, ability)
    console.stage("enumerate and price the candidates")
    require_survivable(job, request.survive)
    draft = draft_plan(job, calibration=earlier.calibration)
    if draft.note:
        console.note(draft.note)
    refuse_unlaunchable(draft)
    refuse_hopeless(draft, by_model=ability.mode is TrialMode.NONE)
    seed = job.training.seed if request.seed is None else request.seed
    problem = search_problem(draft, seed=seed, machine=machine.fingerprint)
    problem = replace(problem, policy=earlier.enlarged(problem.policy))
    shared = any(gpu.processes for gpu in machine.gpus)
    return Planning(
        request=request,
        job=job,
        machine=machine,
        ability=ability,
        draft=draft,
        problem=replace(problem, machine_is_shared=shared),
        console=console,
        pinned=find_pinned(draft, pin) if pin is not None else None,
        earlier=earlier,
    )


def _refuse_profile_of_nothing(request: PlanRequest, job: JobSpec, ability: Ability) -> None:
    """A profile is of the reference trainer's own steps."""
    if not request.profile:
        return
    if job.launch.command:
        raise InputError(
            "--profile cannot look into a script of your own",
            why="the reference trainer writes the profile, and the job starts its own command",
            fix="leave --profile out, and profile in the script (torch.profiler, torch.cuda.memory)",
        )
    if ability.mode is not TrialMode.REAL:
        raise InputError(
            "--profile needs real trials on this machine",
            why=f"the winner is run once more to be looked at; {ability.note}",
            fix="leave --profile out, or plan on a machine that the plan is for",
        )


def _tell_long_sequences(job: JobSpec, console: Progress) -> None:
    """A model with rotary positions takes any length, but was made for one."""
    if job.model.max_seq_len or not job.model.config_json:
        return
    made_for = json.loads(job.model.config_json).get("max_position_embeddings")
    if isinstance(made_for, int) and 0 < made_for < job.training.seq_len:
        console.note(
            f"training.seq_len {job.training.seq_len} exceeds the {made_for} positions that the config of "
            f"{job.model.name} is made for (max_position_embeddings): it runs, but may learn badly"
        )


def _refuse_missing_data(job: JobSpec) -> None:
    """Trials read the job's own tokens; a plan for another machine need not find them here."""
    path = job.training.data.path
    if path and not _is_readable_file(Path(path)):
        raise InputError(
            f"there is no token file {path} that can be read",
            why="training.data.path names it, and trials read from it",
            fix="correct the path, or leave training.data out for synthetic tokens",
        )
    run = job.training.run
    if run.eval_path and not _is_readable_file(Path(run.eval_path)):
        raise InputError(
            f"there is no token file {run.eval_path} that can be read",
            why="training.data.eval_path names it, and the run would end at its first evaluation",
            fix="correct the path, or leave eval_path out",
        )
    if run.pretrained and not Path(run.pretrained).is_dir():
        raise InputError(
            f"there is no folder {run.pretrained}",
            why="training.pretrained names it, and trials start from its weights",
            fix="correct the path, or leave pretrained out to start from random weights",
        )


def _is_readable_file(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


def outline_of(planning: Planning, done: tuple[TrialRecord, ...]) -> SearchOutline:
    """What this planning would try, after the trials that are there."""
    ours = tuple(trial for trial in done if trial.machine == planning.machine.fingerprint)
    outline = outline_search(
        planning.draft, planning.ability, problem=planning.problem, done=ours, validate=planning.request.validate
    )
    axes = _local_axes(planning)
    if not axes or not planning.runs_trials:
        return outline
    varied = ", ".join(axis.name for axis in axes)
    note = f"{outline.trials_note}; the last of them try {varied} around the best layouts"
    return replace(outline, trials_note=note)


def _local_axes(planning: Planning) -> tuple[LocalAxis, ...]:
    """What the second look varies. Compiling is timed on the device that the plan is for, or not at all."""
    return local_axes(planning.job, compiles=planning.ability.gpu is None)


def plan_in(run_dir: RunDir, planning: Planning) -> PlanResult:
    """Search, choose, validate and write the folder, whose lock is held."""
    done = run_dir.read_trials()
    if done and not planning.request.resume:
        raise InputError(
            f"{run_dir.path} already holds {plural(len(done), 'trial')} of this job",
            why="a new search would mix with them",
            fix="add --resume to go on from them, or choose another folder with --out",
        )
    done = _with_earlier(run_dir, done, planning.earlier.trials)
    run_dir.write_text(names.JOB, dump_job(planning.job))
    outline = outline_of(planning, done)
    planning.console.search_started(outline)
    tried = None
    if planning.runs_trials:
        tried = _search(run_dir, planning, done=done, any_left=outline.max_trials > 0)
    planning.console.search_ended()
    selection, validation = _choose(run_dir, planning, tried.result if tried is not None else None)
    if tried is not None:
        trials = told_trials(run_dir, machine=planning.machine.fingerprint)
        selection = replace(selection, trials=trials, calibration=calibrate(planning.draft, trials))
    planning.console.stage("fallbacks for running out of memory")
    fallbacks = plan_fallbacks(
        selection, job=planning.job, machine=planning.machine, validate=planning.request.validate
    )
    survival = Survival()
    if planning.request.survive:
        planning.console.stage("plans for losing nodes")
        survival = _survival(selection, planning, plan_dir=run_dir.path)
    planning.console.stage("write the plan folder")
    parts = PlanParts(
        selection=selection,
        validation=validation,
        job=planning.job,
        machine=planning.machine,
        draft=planning.draft,
        trials_note=planning.ability.note,
        pinned=planning.pinned,
        uses=planning.uses,
        fallbacks=fallbacks,
        origin=planning.earlier.origin,
        survive=survival.plans,
        survival_files=survival.files,
    )
    plan, report, files = write_plan_folder(run_dir, parts)
    return PlanResult(plan_dir=run_dir.path, outline=outline, plan=plan, report=report, files=files)


def _survival(selection: Selection, planning: Planning, *, plan_dir: Path) -> Survival:
    request = planning.request
    survival = plan_survival(
        selection,
        job=planning.job,
        machine=planning.machine,
        count=request.survive,
        validate=request.validate,
        plan_dir=plan_dir,
    )
    if len(survival.plans) < request.survive:
        planning.console.note(
            f"the plan uses {len(survival.plans) + 1} of the nodes, so it can lose {len(survival.plans)} at most"
        )
    return survival


def _with_earlier(
    run_dir: RunDir, done: tuple[TrialRecord, ...], earlier: tuple[TrialRecord, ...]
) -> tuple[TrialRecord, ...]:
    """The folder's trials with those of an earlier plan that still hold, made durable here as well."""
    known = {(trial.key, trial.started_at_s) for trial in done}
    for trial in earlier:
        if (trial.key, trial.started_at_s) in known:
            continue
        number = max((one.number for one in done), default=-1) + 1
        kept = replace(trial, number=number)
        run_dir.append_trial(kept)
        done += (kept,)
    return done


def _study_place(run_dir: RunDir, planning: Planning) -> StudyPlace:
    """Where the study is; of a shared one that it can be used at all, before workers are started for it."""
    request = planning.request
    place = study_place(run_dir, url=request.storage, machine=planning.machine.fingerprint, join=request.join)
    if place.note:
        planning.console.note(place.note)
    if not place.is_ours_alone:
        found = shared_trials(place)
        planning.console.note(
            f"the study at {place.shown} holds {len(found)} trials so far; who else works on it shares them"
        )
        beside = sorted({trial.worker for trial in found if place.is_beside(trial.worker)})
        if beside:
            planning.console.note(
                f"trials of {beside[0]} ran on this very machine: planners at work on one machine at the same time "
                "disturb each other's measurements"
            )
    return place


def _search(run_dir: RunDir, planning: Planning, *, done: tuple[TrialRecord, ...], any_left: bool) -> TriedPin:
    console = planning.console
    place = _study_place(run_dir, planning)

    others: set[str] = set()

    def keep(trial: TrialRecord, best: TrialRecord | None) -> None:
        run_dir.append_trial(trial)
        if trial.worker not in (place.worker, *others):
            others.add(trial.worker)
            console.note(f"trials of {trial.worker or 'an earlier run'} are shared here")
        console.trial_ended(trial, best=best)
        if isinstance(trial.outcome, Measured) and (slope := suspected_leak_bytes_per_step(trial.outcome)):
            console.note(
                f"trial {trial.number}: what stays allocated grew in every step, by {slope / 2**20:.1f} MiB on "
                "average: a leak, if a longer run goes on like that"
            )
        if isinstance(evaluator, TrialEvaluator):
            evaluator.learn(best)
            for said in evaluator.other_processes():
                console.note(said)

    with closing(open_pool(planning.job.cluster.gpu.device, job=planning.job)) as pool:
        if any_left:
            pool.wait_ready()  # so that the first trial's time is its own
        evaluator = _evaluator(planning, pool=pool, run_dir=run_dir)
        ports = SearchPorts(evaluator=evaluator, place=place, on_trial=keep)
        result = _look_twice(run_dir, planning, ports=ports, done=done)
        if isinstance(evaluator, TrialEvaluator):
            evaluator.learn(None)  # what comes now runs to its end
        if place.is_ours_alone:
            result = _decide_close_race(run_dir, planning, result, evaluator=evaluator)
        if isinstance(evaluator, TrialEvaluator):
            result = with_final_trial(result, _finals(run_dir, planning, evaluator))
        if planning.pinned is None:
            return TriedPin(result=result)
        tried = try_pinned(
            planning.pinned, result, evaluator=evaluator, run_dir=run_dir, machine=planning.machine.fingerprint
        )
        if tried.trial is not None:
            console.note(f"your layout ({planning.pinned.pin.text}) is trial {tried.trial.number}")
            console.trial_ended(tried.trial, best=result.choice.winner if result.choice is not None else None)
        return tried


def _decide_close_race(
    run_dir: RunDir, planning: Planning, result: SearchResult, *, evaluator: Evaluator
) -> SearchResult:
    """The result with winner and runner-up measured once more where nothing else tells them apart."""
    spent_s = sum(trial.duration_s for trial in result.trials)
    pair = close_race(result, planning.problem.policy, spent_s=spent_s)
    if not pair:
        return result
    planning.console.note(
        f"trials {pair[0].number} and {pair[1].number} are closer than their measurements' spread: both once more"
    )
    result, again = measure_again(pair, result, evaluator=evaluator, run_dir=run_dir)
    for trial in again:
        planning.console.trial_ended(trial, best=None)
    return result


def _look_twice(
    run_dir: RunDir, planning: Planning, *, ports: SearchPorts, done: tuple[TrialRecord, ...]
) -> SearchResult:
    """Search the layouts, then the local axes around the best of them (see `refinement`)."""
    draft, whole = planning.draft, replace(planning.problem, worker=ports.place.worker)
    looks = in_two_looks(whole, draft, _local_axes(planning))
    result = run_search(looks.first, ports=ports, done=done)
    second = second_look(looks, result, whole=whole, draft=draft)
    if second is None:
        return result
    varied = ", ".join(axis.name for axis in looks.axes)
    planning.console.note(f"{result.stopped_because}; now {varied} around the best layouts")
    return run_search(second, ports=ports, done=run_dir.read_trials())


def _finals(run_dir: RunDir, planning: Planning, evaluator: TrialEvaluator) -> Finals:
    return Finals(
        evaluator=evaluator,
        run_dir=run_dir,
        draft=planning.draft,
        machine=planning.machine.fingerprint,
        console=planning.console,
        profile_dir=run_dir.file(PROFILE_DIR) if planning.request.profile else None,
    )


def _evaluator(planning: Planning, *, pool: WarmPool, run_dir: RunDir) -> Evaluator:
    job, machine, on_start = planning.job, planning.machine, planning.console.trial_started
    if planning.ability.gpu is not None:
        # No process can stand in for a rank of a script that it does not know: the reference trainer does.
        stage = Stage(job=as_reference(job), machine=machine, gpu=planning.ability.gpu)
        return EmulatedEvaluator(stage, pool=pool, run_dir=run_dir, on_start=on_start)
    return TrialEvaluator(job, pool=pool, run_dir=run_dir, machine=machine, on_start=on_start)


def _choose(
    run_dir: RunDir, planning: Planning, result: SearchResult | None
) -> tuple[Selection, tuple[ValidationStep, ...]]:
    """The best choice that passes validation. Raises NotExpressible when the first few do not."""
    draft, console = planning.draft, planning.console
    choices = choices_by_model(draft) if result is None else choices_by_trials(draft, result)
    problems = []
    for selection in islice(choices, MAX_CHOICES):
        refuse_missed(planning.job, selection)
        if not planning.request.validate:
            return selection, ()
        name = short_candidate(selection.candidate)
        console.stage(f"validate {name}")
        log_path = run_dir.file(f"{names.LOGS_DIR}/validation.log")
        validation = validate_selection(selection, job=planning.job, machine=planning.machine, log_path=log_path)
        failed = next((step for step in validation if not step.passed), None)
        if failed is None:
            return selection, validation
        problems.append(f"{name} did not pass validation ({failed.name}: {failed.detail})")
        console.note(problems[-1])
    raise NotExpressible(
        f"none of the {len(problems)} best candidates passed validation",
        why=problems[0],
        fix="see logs/ in the plan folder; --no-validate writes the plan without these gates",
    )
