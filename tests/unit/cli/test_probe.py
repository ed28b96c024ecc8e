"""`planner probe`: its flags as a request, and what it prints of a machine for people and programs."""

from __future__ import annotations

import json
from pathlib import Path

from planner.app.probe_request import MachineFinding, ProbeRequest, ProbeResult
from planner.app.progress import Progress
from planner.probe.cluster_file import render_cluster_file
from planner.probe.examine import with_link, with_staircases
from planner.probe.faults import find_faults
from planner.probe.measurements import parse_link
from planner.probe.records import MachineReport
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli, assert_three_lines
from tests.unit.probe.test_cluster_file import LINK, _staircase
from tests.unit.probe.test_findings import report, with_gpu

GIB = 1 << 30
_FIELDS = ("code", "severity", "key", "message", "why", "fix")


class _Probing(FakeUseCases):
    def __init__(self, machine: MachineReport) -> None:
        super().__init__()
        self.machine = machine
        self.asked: list[ProbeRequest] = []

    def probe_machine(self, request: ProbeRequest, *, console: Progress) -> ProbeResult:
        self.asked.append(request)
        console.stage("look")
        text = render_cluster_file(self.machine, nodes=request.nodes)
        return ProbeResult(
            report=self.machine,
            findings=tuple(
                MachineFinding(**{name: str(getattr(item, name)) for name in _FIELDS})
                for item in find_faults(self.machine, nodes=request.nodes)
            ),
            cluster_file=text.text,
            lacks=text.lacks,
        )


def test_every_flag_becomes_a_field_of_the_request(cli: Cli) -> None:
    product = _Probing(report())
    cli(
        *("probe", "--nodes", "4", "--out", "c.yaml", "--stress", "--stress-memory-gib", "2", "--no-measure-links"),
        product=product,
    )
    assert product.asked == [
        ProbeRequest(nodes=4, out_path=Path("c.yaml"), stress=True, stress_memory_bytes=2 * GIB, measure_links=False)
    ]


def test_people_see_devices_measurements_faults_and_the_file(cli: Cli) -> None:
    machine = with_staircases(with_link(with_gpu(persistence=False), parse_link(LINK)), (_staircase(70 * GIB),))
    run = cli("probe", product=_Probing(machine))
    assert run.exit_code == 0
    assert "8 x NVIDIA H100 80GB HBM3, 70.0 GiB usable each" in run.out
    assert "28 pairs by NV18" in run.out
    assert ["1.00", "GiB", "4.30", "ms", "436", "GB/s"] in [line.split() for line in run.out.splitlines()]
    assert "70.0 GiB could be had" in run.out
    assert "[machine-persistence-off]" in run.out
    assert "gpu: h100-sxm-80gb" in run.out


def test_quiet_prints_the_file_alone(cli: Cli) -> None:
    run = cli("probe", "--quiet", product=_Probing(report()))
    assert run.out == render_cluster_file(report(), nodes=1).text


def test_programs_get_one_document(cli: Cli) -> None:
    run = cli("probe", "--json", product=_Probing(with_gpu(compute_mode="prohibited")))
    document = json.loads(run.out)
    assert document["findings"][0]["code"] == "machine-gpu-prohibited"
    assert document["machine"]["num_devices"] == 8
    assert document["cluster_file"].startswith("# Written by")
    assert document["unseen"] == []


def test_limit_of_a_staircase_that_is_not_climbed_is_refused(cli: Cli) -> None:
    run = cli("probe", "--stress-memory-gib", "2", product=_Probing(report()))
    assert run.exit_code == 2
    assert_three_lines(run.err)
