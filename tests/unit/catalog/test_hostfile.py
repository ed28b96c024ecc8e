"""Hostfiles: what is read, and that every bad line is named by its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog.hostfile import parse_hosts, slots_of_each
from planner.emit.hostfile import render_hostfile
from planner.errors import InputError
from planner.jobfile import dump_job, load_job, resolve_job
from tests.unit.jobfile.jobs import write_job

JOB = """\
model: {name: gpt2}
training: {seq_len: 128, global_batch_size: 64}
cluster: {gpu: h100, hostfile: hosts}
"""
GOOD = "# our nodes\n\nnode0 slots=4\n10.0.0.2   slots=4  # rack 2\nnode-3.example.org slots=4"


def test_hosts_are_read_in_order_with_their_lines() -> None:
    hosts = parse_hosts(GOOD.splitlines(), label="hosts")
    assert [(host.name, host.slots, host.line) for host in hosts] == [
        ("node0", 4, 3),
        ("10.0.0.2", 4, 4),
        ("node-3.example.org", 4, 5),
    ]
    assert slots_of_each(hosts, label="hosts") == 4
    again = parse_hosts(render_hostfile(tuple((host.name, host.slots) for host in hosts)).splitlines(), label="again")
    assert [(host.name, host.slots) for host in again] == [(host.name, host.slots) for host in hosts]


def test_host_without_slots_has_the_default_where_there_is_one() -> None:
    hosts = parse_hosts(["a", "b slots=2"], label="hosts", default_slots=8)
    assert [(host.name, host.slots) for host in hosts] == [("a", 8), ("b", 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=8\nb lots=8", "line 2: expected <host> slots=<n>, found 'b lots=8'"),
        ("a", "line 1: expected"),
        ("a slots=0", "line 1: expected"),
        ("a slots=eight", "line 1: expected"),
        ("a slots=8 extra", "line 1: expected"),
        ("a;rm slots=8", "line 1: expected"),
        ("a slots=8\n\na slots=8", "line 3: a was named before, on line 1"),
        ("# nobody\n", "names no host"),
    ],
)
def test_bad_line_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hosts(text.splitlines(), label="hosts")
    assert said in caught.value.error


def test_uneven_hosts_are_refused_by_line() -> None:
    with pytest.raises(InputError, match=r"hosts line 2: b has slots=4, but a \(line 1\) has slots=8"):
        slots_of_each(parse_hosts(["a slots=8", "b slots=4"], label="hosts"), label="hosts")


def test_hostfile_gives_the_job_its_nodes_and_stays_with_the_plan(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(GOOD)
    job = resolve_job(load_job(write_job(tmp_path, JOB)))
    assert (job.cluster.nodes, job.cluster.gpus_per_node) == (3, 4)
    assert job.launch.hosts[0] == ("node0", 4)
    (tmp_path / "plan").mkdir()
    again = resolve_job(load_job(write_job(tmp_path / "plan", dump_job(job))))
    assert again == job


def test_hostfile_beside_a_number_of_nodes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(GOOD)
    with pytest.raises(InputError, match="nodes beside hostfile"):
        load_job(write_job(tmp_path, JOB.replace("hostfile: hosts", "hostfile: hosts, nodes: 3")))
