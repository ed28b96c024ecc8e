"""`planner plan --debug`: one file that tells all that a bug report needs, and no secret."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.integration.running import Planner, planner_fixture
from tests.integration.wrong_inputs import JOB

planner = planner_fixture
SECRETS = ("tok_0123456789", "hunter2hunter2", "sk-job-environment")


def _texts(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRETS[0])
    monkeypatch.setenv("SOME_DATABASE_URL", f"postgresql://u:{SECRETS[1]}@h/d")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("FAVOURITE_COLOUR", "aubergine")
    monkeypatch.chdir(tmp_path)
    text = f"# {SECRETS[0]}\n{JOB}environment: {{WANDB_API_KEY: {SECRETS[2]}, MODE: quick}}\n"
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "out" / "logs").mkdir(parents=True)


def test_debug_file_holds_job_versions_machine_logs_and_no_secret(planner: Planner, tmp_path: Path) -> None:
    (tmp_path / "out" / "logs").rmdir()
    words = ("plan", "job.yaml", "--out", "out", "--no-validate", "--debug")
    assert planner(*words).exit_code == 0
    (tmp_path / "out" / "logs").mkdir()
    (tmp_path / "out" / "logs" / "trial-0000.log").write_text("x" * 10**6 + f"\nexport API_KEY={SECRETS[2]}\nthe end\n")
    run = planner(*words)
    assert run.exit_code == 0 and f"for a bug report: {tmp_path}/out/debug.zip" in run.err
    texts = _texts(tmp_path / "out" / "debug.zip")
    everything = "".join(texts.values()) + "".join(texts)
    assert not [secret for secret in (*SECRETS, "aubergine") if secret in everything]
    assert "it ended well" in texts["run.txt"] and "--debug" in texts["run.txt"]
    assert "torch==" in texts["packages.txt"] and "fingerprint cpu-" in texts["machine.txt"]
    assert "NCCL_DEBUG=INFO" in texts["environment.txt"]
    assert "tiny-llama-cpu" in texts["job-file.yaml"] and "quick" in texts["plan/job.yaml"]
    assert texts["plan/logs/trial-0000.log"].endswith("the end\n")
    assert len(texts["plan/logs/trial-0000.log"]) < 40_000


def test_debug_file_of_a_planning_that_failed_holds_the_traceback_and_lies_here(
    planner: Planner, tmp_path: Path
) -> None:
    words = ("plan", "job.yaml", "--out", "out", "--debug", "--set", "training.seq_len=x", "--storage")
    run = planner(*words, "postgresql://u:swordfish@h/d")
    assert run.exit_code == 2 and str(tmp_path / "meshplan-debug.zip") in run.err
    texts = _texts(tmp_path / "meshplan-debug.zip")
    assert "InputError" in texts["run.txt"] and "planner/jobfile" in texts["run.txt"]
    assert "swordfish" not in "".join(texts.values()) and "postgresql://u:***@h/d" in texts["run.txt"]
