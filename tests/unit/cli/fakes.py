"""A product that answers at once, standing at the border of the command line: it plans by replaying a report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from planner.app.progress import OutlinedCandidate, Progress, SearchOutline
from planner.app.requests import CatalogKind, CatalogTable, PlanRequest, PlanResult, VerifyResult, VerifyRow
from planner.report import PlannedRow, ReportInput
from planner.spec import Launcher, Measured, TrialMode, TrialRecord
from planner.spec.codec import to_plain
from tests.unit.report.samples import GIB, make_estimate, quickstart_report


def make_outline(*, max_trials: int = 5, longest_s: float = 100.0, mode: TrialMode = TrialMode.REAL) -> SearchOutline:
    """The outline of the search that `quickstart_report` is the end of."""
    report = quickstart_report()
    return SearchOutline(
        job_name="quickstart",
        mode=mode,
        world_size=2,
        device_name="cpu-process",
        usable_bytes=GIB,
        num_combinations=180,
        num_candidates=96,
        num_screened=4,
        max_trials=max_trials,
        longest_s=longest_s,
        first_candidates=(
            OutlinedCandidate(
                key=report.plan.key, name="ZeRO-1 dp2 mb8x2 bf16 full", tokens_per_s=2560.0, device_used_bytes=GIB // 3
            ),
        ),
        rejected=report.plan.search.rejected,
        left_out_axes=report.plan.search.left_out_axes,
        trials_note=report.plan.search.trials_note,
    )


class FakeUseCases:
    """`end`: an exception that `plan_job` raises after its second trial; `pause_s`: how long a trial takes."""

    def __init__(
        self,
        *,
        end: BaseException | None = None,
        pause_s: float = 0.0,
        keeps_promise: bool = True,
        crowded: str = "",
    ) -> None:
        self.end = end
        self.clusters: tuple[str, ...] = ()
        self.compared: list[tuple[Path, tuple[PlannedRow, ...]]] = []
        self.pause_s = pause_s
        self.keeps_promise = keeps_promise
        self.crowded = crowded
        self.requests: list[PlanRequest] = []
        self.rows: list[dict[str, Any]] = []
        self.debugged: list[tuple[tuple[str, ...], BaseException | None]] = []

    def plan_job(self, request: PlanRequest, *, console: Progress) -> PlanResult:
        self.requests.append(request)
        print("a library that prints")
        console.stage("read the job")
        if request.dry_run:
            return PlanResult(plan_dir=request.out_dir, outline=make_outline())
        console.search_started(make_outline())
        best: TrialRecord | None = None
        for trial in quickstart_report().trials:
            if trial.number == 2 and self.end is not None:
                raise self.end
            console.trial_started(trial.number, trial.candidate)
            time.sleep(self.pause_s)
            if isinstance(trial.outcome, Measured) and (best is None or trial.number == 3):
                best = trial
            console.trial_ended(trial, best=best)
        console.search_ended()
        console.stage("validate the plan")
        console.note("this is a note with [brackets] and \x1b[31mcolour")
        time.sleep(self.pause_s)
        report = quickstart_report()
        files = (request.out_dir / "plan.yaml", request.out_dir / "launch.sh")
        return PlanResult(
            plan_dir=request.out_dir, outline=make_outline(), plan=report.plan, report=report, files=files
        )

    def candidate_clusters(self, job_path: Path, overrides: tuple[str, ...]) -> tuple[str, ...]:
        return self.clusters

    def write_comparison(self, folder: Path, rows: tuple[PlannedRow, ...]) -> Path:
        self.compared.append((folder, rows))
        return folder / "comparison.md"

    def write_debug_file(self, request: PlanRequest, *, words: tuple[str, ...], problem: BaseException | None) -> Path:
        self.debugged.append((words, problem))
        return request.out_dir / "debug.zip"

    def estimate_one(self, row: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(row)
        return estimate_result(device_used_gib=row.get("micro_batch_size", 1) * 10, feasible="model" in row)

    def estimate_rows(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for line in lines:
            yield {"row": line.strip()}

    def verify_plan(self, plan_dir: Path, *, steps: int, console: Progress, profile: bool = False) -> VerifyResult:
        console.stage(f"run {steps} steps")
        seen_s = 0.41 if self.keeps_promise else 0.62
        rows = (
            VerifyRow(
                name="step_time_s",
                promised=0.40,
                seen=seen_s,
                tolerance_fraction=0.2,
                passed=self.keeps_promise and not self.crowded,
                not_comparable=self.crowded,
            ),
            VerifyRow(name="device_used_bytes", promised=GIB, seen=GIB, tolerance_fraction=0.1, passed=True),
        )
        return VerifyResult(
            plan_dir=plan_dir,
            passed=self.keeps_promise,
            rows=rows,
            command=f"bash {plan_dir}/launch.sh",
            log_path=plan_dir / "logs" / "verify.log",
        )

    def emit_plan(
        self, plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None, overrides: tuple[str, ...]
    ) -> tuple[Path, ...]:
        return ((out_dir or plan_dir) / f"launch-{launcher}{''.join(overrides)}.sh",)

    def load_report(self, plan_dir: Path) -> ReportInput:
        return quickstart_report()

    def list_catalog(self, kind: CatalogKind) -> CatalogTable:
        return CatalogTable(
            kind=kind,
            columns=("name", "memory_usable_bytes", "source"),
            rows=(("h100-sxm-80gb", 79 * GIB, "data sheet [1]"),),
        )


def estimate_result(*, device_used_gib: int, feasible: bool = True) -> dict[str, Any]:
    """A result of `estimate` as interface.md has it, on 40 GiB of usable memory."""
    if not feasible:
        return {"feasible": False, "fits": False, "reasons": ["pipelines run with ZeRO 0 or 1 only"]}
    estimate = make_estimate(device_used_bytes=device_used_gib * GIB, usable_bytes=40 * GIB)
    return {
        "feasible": True,
        "fits": estimate.fits,
        "reasons": [],
        "memory": to_plain(estimate.memory),
        "step_time_s": estimate.step_time_s,
        "time_breakdown": to_plain(estimate.time),
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu_fraction,
        "kind": "computed",
    }


def build() -> FakeUseCases:
    """For child processes: a product whose trials take long enough to be interrupted."""
    return FakeUseCases(pause_s=0.5)
