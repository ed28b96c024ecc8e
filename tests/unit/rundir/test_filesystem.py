"""Network file systems are known from the mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.rundir import RunDir, network_filesystem

_MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb /home/local xfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
10.0.0.1@tcp:/scratch /scratch lustre rw,flock 0 0
user@host:/ /mnt/ssh fuse.sshfs rw 0 0
lxcfs /var/lib/lxcfs fuse.lxcfs rw 0 0
server:/x /over nfs rw 0 0
/dev/sdc /over ext4 rw 0 0
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x", ""),
        ("/home/me/plan", "nfs4"),
        ("/home/local/plan", ""),
        ("/homely/plan", ""),
        ("/tmp/plan", ""),
        ("/mnt/my share/plan", "cifs"),
        ("/scratch/me", "lustre"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/var/lib/lxcfs/x", ""),
        ("/over/x", ""),
    ],
)
def test_network_filesystem_of_path(path: str, kind: str) -> None:
    assert network_filesystem(Path(path), mounts=_MOUNTS) == kind


def test_network_filesystem_without_a_mount_table_is_taken_as_local() -> None:
    assert network_filesystem(Path("/x"), mounts="") == ""


def test_plan_folder_knows_its_file_system(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path / "p", "h").network_filesystem == network_filesystem(tmp_path)
