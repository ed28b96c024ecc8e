"""The shipped dashboard and alert rules, every query of both, asked of a real Prometheus that scrapes a real training;
and that training evaluates, saves in the background, and ends cleanly when it is told to."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import psutil
import pytest
import yaml

from planner.spec import DataSpec, MemoryBudget, Phase, RunPromise, RunSpec
from tests.distributed.tasks import make_task, tiny_llama
from tests.distributed.test_out_of_memory import write_files
from tests.integration.commands import ROOT
from tests.integration.ports import free_port
from tests.integration.prometheus import PrometheusServer, prometheus_server, server_program

MONITORING = ROOT / "configs" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
SEQ_LEN = 32
# Queries whose answer is rightly empty while nothing is wrong are in the alerts; all of the dashboard's have an answer.


def dashboard_queries() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def alert_rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def start_training(folder: Path, port: int) -> subprocess.Popen[str]:
    """Two ranks that go on until they are told to stop."""
    generator = np.random.default_rng(0)
    for name in ("tokens.bin", "held-out.bin"):
        (folder / name).write_bytes(generator.integers(0, 256, SEQ_LEN * 21).astype("<u2").tobytes())
    task = make_task(tiny_llama(), data_parallel_size=2, zero_stage=2, global_batch_size=8)
    run = RunSpec(
        eval_path=str(folder / "held-out.bin"),
        eval_interval_steps=3,
        keep_checkpoints=2,
        async_checkpoints=True,
        tensorboard_dir=str(folder / "board"),
        metrics_port=port,
        memory_budgets=(MemoryBudget(phase=Phase.FORWARD, usable_fraction=0.000001),),
    )
    training = dataclasses.replace(
        task.training,
        steps=100_000,
        data=DataSpec(path=str(folder / "tokens.bin"), token_bytes=2),
        checkpoint_dir=str(folder / "checkpoints"),
        checkpoint_interval_steps=4,
        run=run,
    )
    promise = RunPromise(device_used_bytes=1 << 20, usable_bytes=1 << 30, step_time_s=1e-9, ideal_step_s=1e-6)
    write_files(folder, dataclasses.replace(task, training=training, promise=promise))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "planner.runtime.train", "--task", "task.json", "--deepspeed-config", "ds_config.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, text=True)


Scraped: TypeAlias = tuple[Path, PrometheusServer, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A training that runs, and a server that scrapes it."""
    if server_program() is None:
        pytest.skip("needs Prometheus (Debian: apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("monitored")
    port = free_port(count=2)
    trainer = start_training(folder, port)
    try:
        with prometheus_server([f"127.0.0.1:{port + rank}" for rank in range(2)], rules=ALERTS) as server:
            server.wait_for(
                lambda: trainer.poll() is None and len(server.query("meshplan_step > 8")) == 2, limit_s=200.0
            )
            yield folder, server, trainer
    finally:
        if trainer.poll() is None:  # a test failed before it stopped the run
            for process in (*psutil.Process(trainer.pid).children(recursive=True), psutil.Process(trainer.pid)):
                process.kill()
        trainer.wait()


@pytest.mark.timeout(290)
def test_every_query_of_dashboard_and_alerts_is_answered_and_the_run_stops_cleanly(
    training: Scraped,
) -> None:
    folder, server, trainer = training
    for query in dashboard_queries():
        assert server.query(query), f"no answer to {query}"
    for rule in alert_rules():
        server.query(rule["expr"])  # AssertionError when Prometheus refuses it

    def states() -> dict[str, str]:
        groups = server.get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert all(rule["health"] in ("ok", "unknown") and not rule.get("lastError") for rule in rules), rules
        return {rule["name"]: rule["state"] for rule in rules if rule["health"] == "ok"}

    server.wait_for(lambda: len(states()) == len(alert_rules()))
    wrong = {"MeshplanMemoryOverPlan", "MeshplanPhaseOverBudget", "MeshplanSlowerThanPlanned"}  # as promised above
    server.wait_for(lambda: {name for name, state in states().items() if state != "inactive"} >= wrong)
    assert states()["MeshplanRankGone"] == states()["MeshplanMemoryNearLimit"] == "inactive"

    _stop_and_check(folder, trainer)


def _stop_and_check(folder: Path, trainer: subprocess.Popen[str]) -> None:
    ranks = [p for p in psutil.Process(trainer.pid).children(recursive=True) if "planner.runtime.train" in p.cmdline()]
    ranks[0].send_signal(signal.SIGTERM)  # one is told, all stop after the same step
    trainer.wait(timeout=120)
    log = (folder / "log").read_text()
    stopped = re.search(r"told to stop, after step (\d+)", log)
    assert stopped is not None, log[-3000:]
    assert (folder / "checkpoints" / "latest").read_text() == f"global_step{stopped[1]}"
    assert len(list((folder / "checkpoints").glob("global_step*"))) == 2
    losses = re.findall(r"^eval after step (\d+)  loss ([\d.]+)  over 21 sequences", log, re.MULTILINE)
    assert [int(step) for step, _loss in losses][:2] == [3, 6]
    assert "forward took" in log and "over its budget" in log
    assert list((folder / "board").glob("events.out.tfevents.*"))


def _promtool() -> str:
    found = shutil.which("promtool", path="/usr/bin:/usr/local/bin:/bin")
    if found is None:
        pytest.skip("promtool comes with Prometheus (Debian: apt-get install prometheus)")
    return found


def test_alert_rules_fire_on_what_they_are_for_and_not_before(tmp_path: Path) -> None:
    """promtool plays made-up series to the rules."""
    promtool = _promtool()

    def case(alert: str, series: dict[str, str], *, minute: int, labels: dict[str, str]) -> dict[str, object]:
        severity = {rule["alert"]: rule["labels"]["severity"] for rule in alert_rules()}[alert]  # type: ignore[index]
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {"eval_time": "0m", "alertname": alert, "exp_alerts": []},
                {
                    "eval_time": f"{minute}m",
                    "alertname": alert,
                    "exp_alerts": [{"exp_labels": {**labels, "severity": severity}}],
                },
            ],
        }

    rank = {"rank": "3"}
    near = {'meshplan_limit_distance_bytes{rank="3"}': "4x5", 'meshplan_limit_bytes{rank="3"}': "100x5"}
    tests = [
        case("MeshplanMemoryNearLimit", near, minute=2, labels=rank),
        case("MeshplanMemoryGrows", {'meshplan_memory_growth_bytes_per_step{rank="3"}': "9x9"}, minute=6, labels=rank),
        case("MeshplanFragmentation", {'meshplan_fragmentation_ratio{rank="3"}': "0.3x9"}, minute=6, labels=rank),
        case("MeshplanAllocatorRetries", {'meshplan_allocator_retries{rank="3"}': "0+1x9"}, minute=4, labels=rank),
        case("MeshplanRankGone", {'up{job="meshplan",instance="a:1"}': "0x9"}, minute=3,
             labels={"job": "meshplan", "instance": "a:1"}),
    ]  # fmt: skip
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # promtool would want every word of them
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run([promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_shipped_prometheus_configuration_is_valid() -> None:
    promtool = _promtool()
    done = subprocess.run(
        [promtool, "check", "config", str(MONITORING / "prometheus.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
