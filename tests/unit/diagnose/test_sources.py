"""Where logs come from: files, folders of ranks, compressed and recoded ones, and what is no log."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from planner.diagnose.sources import chunks_of, find_sources, is_snapshot, read_logs
from planner.errors import InputError
from tests.unit.diagnose.reading import oom_text

_OOM = oom_text(request=1, total=8, free=0, live=7, idle=0)


def test_folder_of_rank_logs_gives_each_its_rank(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(_OOM if rank == 2 else "step 1\n")
        (folder / "stdout.log").write_text("fine\n")
    (tmp_path / ".hidden.log").write_text(_OOM)
    logs, snapshots = find_sources((tmp_path,))
    facts = read_logs(logs)
    assert snapshots == ()
    assert len(logs) == 6
    assert [(event.rank, event.source) for event in facts.events] == [(2, "attempt_0/2/stderr.log")]


def test_compressed_log_is_unpacked_and_a_cut_one_read_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = gzip.compress((_OOM * 2000).encode())
    whole, cut = tmp_path / "a.log.gz", tmp_path / "b.log.gz"
    whole.write_bytes(packed + gzip.compress(b"second member: exits with return code = -9\n"))
    cut.write_bytes(packed[:-40])
    facts = read_logs(find_sources((whole,))[0])
    assert [event.kind.value for event in facts.events] == ["device-allocator", "killed"]
    assert read_logs(find_sources((cut,))[0]).events


def test_damaged_archive_ends_the_reading_not_the_program(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 100)
    assert b"".join(chunks_of(path)) == b""


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_log_that_powershell_redirected_is_recoded(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.log"
    mark = {"utf-16-le": "\ufeff", "utf-16-be": "\ufeff"}.get(encoding, "")
    path.write_bytes((mark + _OOM).encode(encoding))
    assert len(read_logs(find_sources((path,))[0]).events) == 1


def test_missing_file_device_and_empty_folder_are_the_users_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError):
            find_sources((path,))


def test_snapshot_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    renamed, text = tmp_path / "oom.bin", tmp_path / "a.log"
    renamed.write_bytes(b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}.")
    text.write_text("x")
    assert is_snapshot(renamed)
    assert not is_snapshot(text)
    assert find_sources((renamed, text))[1] == (renamed,)
