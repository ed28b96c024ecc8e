"""The border to `planner.app`: what the verbs call, as one protocol that tests can stand in for.

The real functions are imported one by one, when they are called: `estimate` need not load what `plan` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from planner.app.check_request import CheckRequest, CheckResult
from planner.app.diagnose_request import DiagnoseRequest, DiagnoseResult
from planner.app.probe_request import ProbeRequest, ProbeResult
from planner.app.progress import Progress
from planner.app.replan_request import ReplanRequest, ReplanResult
from planner.app.requests import (
    CatalogKind,
    CatalogTable,
    PlanRequest,
    PlanResult,
    SuperviseRequest,
    TokensRequest,
    VerifyResult,
)
from planner.report import PlannedRow, ReportInput
from planner.spec.kinds import Launcher


class UseCases(Protocol):
    """What the command line asks of the product."""

    def plan_job(self, request: PlanRequest, *, console: Progress) -> PlanResult: ...

    def replan(self, request: ReplanRequest, *, console: Progress) -> ReplanResult: ...

    def candidate_clusters(self, job_path: Path, overrides: tuple[str, ...]) -> tuple[str, ...]: ...

    def write_comparison(self, folder: Path, rows: tuple[PlannedRow, ...]) -> Path: ...

    def write_debug_file(
        self, request: PlanRequest, *, words: tuple[str, ...], problem: BaseException | None
    ) -> Path: ...

    def estimate_one(self, row: dict[str, Any]) -> dict[str, Any]: ...

    def estimate_rows(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]: ...

    def verify_plan(self, plan_dir: Path, *, steps: int, console: Progress, profile: bool = False) -> VerifyResult: ...

    def emit_plan(
        self, plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None, overrides: tuple[str, ...]
    ) -> tuple[Path, ...]: ...

    def load_report(self, plan_dir: Path) -> ReportInput: ...

    def list_catalog(self, kind: CatalogKind) -> CatalogTable: ...

    def check_config(self, request: CheckRequest) -> CheckResult: ...

    def diagnose_logs(self, request: DiagnoseRequest) -> DiagnoseResult: ...

    def probe_machine(self, request: ProbeRequest, *, console: Progress) -> ProbeResult: ...

    def supervise_run(self, request: SuperviseRequest) -> int: ...

    def make_tokens(self, request: TokensRequest, *, quiet: bool) -> dict[str, Any]: ...


class ProductUseCases:
    """The real ones."""

    def plan_job(self, request: PlanRequest, *, console: Progress) -> PlanResult:
        from planner.app.plan import plan_job

        return plan_job(request, console=console)

    def replan(self, request: ReplanRequest, *, console: Progress) -> ReplanResult:
        from planner.app.replan import replan

        return replan(request, console=console)

    def candidate_clusters(self, job_path: Path, overrides: tuple[str, ...]) -> tuple[str, ...]:
        from planner.app.several import candidate_clusters

        return candidate_clusters(job_path, overrides)

    def write_comparison(self, folder: Path, rows: tuple[PlannedRow, ...]) -> Path:
        from planner.app.several import write_comparison

        return write_comparison(folder, rows)

    def write_debug_file(self, request: PlanRequest, *, words: tuple[str, ...], problem: BaseException | None) -> Path:
        from planner.app.debug import write_debug_file

        return write_debug_file(request, words=words, problem=problem, environment=os.environ)

    def estimate_one(self, row: dict[str, Any]) -> dict[str, Any]:
        from planner.app.estimate import estimate_one

        return estimate_one(row)

    def estimate_rows(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        from planner.app.estimate import estimate_rows

        return estimate_rows(iter(lines))

    def verify_plan(self, plan_dir: Path, *, steps: int, console: Progress, profile: bool = False) -> VerifyResult:
        from planner.app.verify import verify_plan

        return verify_plan(plan_dir, steps=steps, console=console, profile=profile)

    def emit_plan(
        self, plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None, overrides: tuple[str, ...]
    ) -> tuple[Path, ...]:
        from planner.app.emit import emit_plan

        return emit_plan(plan_dir, launcher=launcher, out_dir=out_dir, overrides=overrides)

    def load_report(self, plan_dir: Path) -> ReportInput:
        from planner.app.report import load_report

        return load_report(plan_dir)

    def list_catalog(self, kind: CatalogKind) -> CatalogTable:
        from planner.app.catalog import list_catalog

        return list_catalog(kind)

    def check_config(self, request: CheckRequest) -> CheckResult:
        from planner.app.check import check_config_file

        return check_config_file(request)

    def diagnose_logs(self, request: DiagnoseRequest) -> DiagnoseResult:
        from planner.app.diagnose import diagnose_logs

        return diagnose_logs(request)

    def probe_machine(self, request: ProbeRequest, *, console: Progress) -> ProbeResult:
        from planner.app.probe import probe_this_machine

        return probe_this_machine(request, console=console)

    def supervise_run(self, request: SuperviseRequest) -> int:
        from planner.app.supervise import supervise_run

        return supervise_run(request)

    def make_tokens(self, request: TokensRequest, *, quiet: bool) -> dict[str, Any]:
        from planner.app.tokens import make_tokens

        return make_tokens(request, show=lambda line: None if quiet else print(line, file=sys.stderr, flush=True))
