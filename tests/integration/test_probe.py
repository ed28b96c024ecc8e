"""`planner probe` on the machine at hand, whatever it is: looked at, measured in small, read back by a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.app.jobs import read_job
from planner.app.probe import probe_this_machine
from planner.app.probe_request import ProbeRequest
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.errors import InputError
from planner.jobfile import load_job, resolve_job
from planner.spec import DeviceKind
from tests.unit.cli.running import run_child
from tests.unit.probe.machines import cluster_node, fake_nvidia_smi

_REAL = "from planner.cli import main; main()"
JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {file: cluster.yaml}
"""


@pytest.fixture
def without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GPUs this machine has are hidden from the program."""
    fake_nvidia_smi(tmp_path, gpus="", apps="")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("without_gpus")
def test_cpu_machine_is_looked_at_stressed_and_measured(tmp_path: Path) -> None:
    """Within its limit the staircase ends by memory, at the limit; two ranks reach each other at some speed."""
    limit = 192 << 20
    request = ProbeRequest(
        out_path=tmp_path / "cluster.yaml", stress=True, stress_memory_bytes=limit, measure_links=True
    )
    result = probe_this_machine(request, console=SilentProgress())
    (staircase,) = result.report.staircases
    assert staircase.failed_batch > staircase.largest_batch > 0
    assert 0.7 * limit < staircase.capacity_bytes < 1.1 * limit  # of what it holds beyond what it held before
    assert "allocate" in staircase.ended_by
    assert result.report.usable_bytes > limit  # a limit that was asked for says nothing of the machine
    assert result.report.link is not None
    assert (result.report.link.backend, result.report.link.ranks) == ("gloo", 2)
    assert result.report.link.bandwidth_bytes_per_s > 1e6
    assert result.report.software.version("torch")
    assert not result.report.software.unseen
    (tmp_path / "job.yaml").write_text(JOB)
    cluster = resolve_job(load_job(tmp_path / "job.yaml")).cluster
    assert cluster.gpu.device is DeviceKind.CPU
    assert abs(cluster.gpu.memory_usable_bytes - result.report.usable_bytes) < 2 << 20


def test_gpus_of_a_driver_are_described_though_nothing_can_run_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The border is faked, so torch sees none of them: the all-reduce fails, and that is said in words."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", fake_nvidia_smi(tmp_path / "bin")["PATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = probe_this_machine(ProbeRequest(nodes=2), console=SilentProgress(), root=cluster_node(tmp_path / "root"))
    codes = {finding.code for finding in result.findings}
    assert {"machine-gpu-shared", "machine-gpu-ecc-errors", "machine-pcie-narrow", "machine-infiniband-down"} <= codes
    assert any("the all-reduce did not run" in words for words in result.report.unseen)
    assert "gpu: h100-sxm-80gb" in result.cluster_file
    assert "nodes: 2" in result.cluster_file


def test_command_prints_one_document_and_writes_the_file(tmp_path: Path) -> None:
    out = tmp_path / "c.yaml"
    run = run_child("probe", "--json", "--no-measure-links", "--out", str(out), program=_REAL)
    assert run.exit_code == 0, run.err
    document = json.loads(run.out)
    assert document["written"] == str(out)
    assert out.read_text() == document["cluster_file"]


@pytest.mark.parametrize("out", ["", "no/such/folder/c.yaml"])
def test_where_nothing_can_be_written_is_refused_before_measuring(tmp_path: Path, out: str) -> None:
    with pytest.raises(InputError):
        probe_this_machine(ProbeRequest(out_path=tmp_path / out), console=SilentProgress())


class _Notes(SilentProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_auto_on_a_machine_without_gpus_says_that_it_plans_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no driver's program here
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    (tmp_path / "job.yaml").write_text(JOB.replace("file: cluster.yaml", "gpu: auto"))
    console = _Notes()
    job, machine = read_job(PlanRequest(job_path=tmp_path / "job.yaml", out_dir=tmp_path / "p"), console=console)
    if job.cluster.gpu.device is not DeviceKind.CPU:
        pytest.skip("this machine shows its GPUs through a library")
    (note,) = [text for text in console.said if "gpu: auto" in text]
    assert "processes of the CPU" in note
    assert machine.notes == (note,)
