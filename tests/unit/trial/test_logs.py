"""Bounded tails and the joined log of a trial."""

from __future__ import annotations

from pathlib import Path

from planner.trial import logs
from planner.trial.logs import join_logs, read_tail


def test_tail_of_a_long_log_is_bounded_and_starts_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    tail = read_tail(path, limit_bytes=100)
    assert len(tail) <= 100
    assert tail.startswith("line ")
    assert tail.endswith("line 9999\n")


def test_tail_cut_inside_a_letter_is_still_text(tmp_path: Path) -> None:
    path = tmp_path / "umlauts.log"
    path.write_bytes("ü".encode() * 100)
    assert "ü" in read_tail(path, limit_bytes=11)


def test_tail_of_no_file_is_empty(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "none.log") == ""


def test_joined_log_names_the_rank_of_every_line(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("one\ntwo\n")
    second.write_bytes(b"three\xff")
    join_logs([(0, first), (1, second), (2, tmp_path / "none")], into=tmp_path / "joined.log", remarks=("the end",))
    assert (tmp_path / "joined.log").read_text().splitlines() == [
        "[rank 0] one",
        "[rank 0] two",
        "[rank 1] three\ufffd",
        "[trial] the end",
    ]


def test_joined_log_keeps_both_ends_of_a_runaway(tmp_path: Path) -> None:
    path = tmp_path / "runaway"
    path.write_text("begin\n" + "x" * 99 + "\n" + ("y" * 99 + "\n") * (logs.KEPT_BYTES_PER_RANK // 50) + "end\n")
    join_logs([(0, path)], into=tmp_path / "joined.log")
    lines = (tmp_path / "joined.log").read_text().splitlines()
    assert lines[0] == "[rank 0] begin"
    assert lines[-1] == "[rank 0] end"
    assert any("bytes left out" in line for line in lines)
    assert (tmp_path / "joined.log").stat().st_size < 1.2 * logs.KEPT_BYTES_PER_RANK
