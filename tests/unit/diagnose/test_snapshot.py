"""Memory snapshots: read without unpickling, and who held memory at the peak."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.app.diagnose import diagnose_logs
from planner.app.diagnose_request import DiagnoseRequest
from planner.diagnose.snapshot import read_snapshot
from planner.diagnose.snapshot_pickle import read_plain_pickle
from planner.errors import InputError

MIB = 2**20
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5) | st.tuples(inner, inner)
    ),
    max_leaves=25,
)


@settings(deadline=None)
@given(plain_values, st.sampled_from([3, 4, 5]))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol), label="x") == value


def test_what_torchs_own_writer_emits_is_read() -> None:
    """Protocol 2 without bytes, which Python would write as a call."""
    value = {"segments": [{"address": 2**40, "blocks": [], "pool": (0, 0), "on": True, "x": None, "y": 0.5}]}
    assert read_plain_pickle(pickle.dumps(value, protocol=2), label="x") == value


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_in_the_file_is_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    data = pickle.dumps({"segments": [_Runs(target)]}, protocol=protocol)
    with pytest.raises(InputError, match="plain values"):
        read_plain_pickle(data, label="x")
    assert not target.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x09}.",
        b"\x80\x04r\xff\xff\xff\x7f.",  # a memo index of two thousand million
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",  # bytes of an exabyte
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x00.",  # a text of an exabyte
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # an integer of two thousand million bytes
        b"\x80\x04]" + b"a" * 10,
        b"\x80\x04" + b")" + b"\x85" * 200_000 + b"}q\x00.",
        b"\x80\x04}" + b")" + b"\x85" * 200_000 + b"Ns.",  # a key nested deep enough to end a careless interpreter
        b"}}(" * 1000 + b".",
    ],
)
def test_damaged_and_hostile_files_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(InputError):
        read_plain_pickle(data, label="x")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_plain_pickle(b"\x80\x04" + data, label="x")
    except InputError as problem:
        assert problem.fix


def _frames(name: str) -> list[dict[str, Any]]:
    return [
        {"filename": "/u/lib/python3.11/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/u/model.py", "line": 12, "name": name},
        {"filename": "/u/train.py", "line": 3, "name": "main"},
    ]


def _history(seed: int) -> tuple[dict[str, Any], int, dict[str, int]]:
    """A snapshot with its true peak and what each function held there."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    live: dict[int, tuple[int, str]] = {}
    trace: list[dict[str, Any]] = []
    peak, at_peak = 0, {}
    for number in range(400):
        if live and rng.random() < 0.48:
            address = rng.choice(list(live))
            size, _ = live.pop(address)
            for action in ("free_requested", "free_completed"):
                trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": []})
        else:
            # Addresses are used again, as an allocator does.
            address = rng.choice([address for address in range(64) if address not in live])
            size, name = rng.randrange(1, 64 * MIB), f"forward_{rng.randrange(5)}"
            live[address] = (size, name)
            trace.append(
                {
                    "action": "alloc",
                    "addr": address,
                    "size": size,
                    "stream": 0,
                    "frames": _frames(name),
                    "time_us": number,
                }
            )
        total = sum(size for size, _ in live.values())
        if total >= peak:
            peak, at_peak = total, dict(live.values() and {})
            for size, name in live.values():
                at_peak[name] = at_peak.get(name, 0) + size
    blocks = [
        {"address": a, "size": s, "requested_size": s, "state": "active_allocated", "frames": _frames(n)}
        for a, (s, n) in live.items()
    ]
    segment = {"device": 0, "address": 0, "total_size": 2**33, "stream": 0, "segment_pool_id": (0, 0), "blocks": blocks}
    return {"segments": [segment], "device_traces": [trace]}, peak, at_peak


@pytest.mark.parametrize("seed", range(5))
def test_peak_and_its_holders_are_those_of_a_forward_count(seed: int) -> None:
    snapshot, peak, at_peak = _history(seed)
    (device,) = read_snapshot(snapshot, label="x")
    assert device.peak_bytes == peak
    assert {holder.place.split(" in ")[1]: holder.size_bytes for holder in device.holders} == at_peak
    assert all(holder.place.startswith("/u/model.py:12") and holder.phase == "forward" for holder in device.holders)


def test_snapshot_with_a_refusal_is_diagnosed(tmp_path: Path) -> None:
    blocks = [
        {
            "address": 0,
            "size": 70 << 30,
            "requested_size": 70 << 30,
            "state": "active_allocated",
            "frames": _frames("forward"),
        },
        {"address": 1, "size": 8 << 30, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "total_size": 78 << 30, "segment_pool_id": (0, 0), "blocks": blocks}
    oom = {"action": "oom", "size": 4 << 30, "device_free": 1 << 30, "frames": _frames("forward")}
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[oom]]}))
    document = diagnose_logs(DiagnoseRequest(paths=(path,))).document
    assert document["cause"] == "fragmentation"
    assert document["snapshots"][0]["holders"][0]["size_bytes"] == 70 << 30
    assert document["events"][0]["file"] == "/u/model.py"


@pytest.mark.parametrize(
    "value", [[], {}, {"segments": 3}, {"segments": [1, None, {"blocks": [5]}], "device_traces": [None, [3]]}]
)
def test_values_that_are_no_snapshot_or_an_odd_one_end_in_words(value: Any) -> None:
    try:
        read_snapshot(value, label="x")
    except InputError as problem:
        assert "snapshot" in problem.error
