"""Which kind of file system a folder lies on: SQLite's locks cannot be trusted on a network one."""

from __future__ import annotations

from pathlib import Path

# File systems whose byte-range locks are absent, optional or broken in common set-ups (SQLite FAQ, question 5;
# Lustre without `flock` as mount option; FUSE clients of object stores and of sshfs).
_NETWORK_TYPES = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "afs", "pvfs2",
        "orangefs", "panfs", "9p", "ncpfs", "coda", "davfs", "weka", "wekafs", "virtiofs", "juicefs",
    }
)  # fmt: skip
_NETWORK_FUSE_MARKS = (
    "sshfs",
    "gluster",
    "ceph",
    "juicefs",
    "s3",
    "gcs",
    "blob",
    "rclone",
    "davfs",
    "beegfs",
    "goofys",
)


def network_filesystem(path: Path, *, mounts: str | None = None) -> str:
    """The type of the network file system that holds `path`, or "" for a local one or where it cannot be told.

    `mounts` is the text of `/proc/mounts` (read when left out; absent on systems other than Linux).
    """
    kind = _filesystem_type(path.resolve(), _read_mounts() if mounts is None else mounts)
    if kind in _NETWORK_TYPES:
        return kind
    is_network_fuse = kind.startswith("fuse") and any(mark in kind for mark in _NETWORK_FUSE_MARKS)
    return kind if is_network_fuse else ""


def _read_mounts() -> str:
    table = Path("/proc/mounts")
    return table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""


def _filesystem_type(path: Path, mounts: str) -> str:
    """The type of the deepest mount above `path`; of two mounts on one point the later counts (it hides the other)."""
    best_depth, best_type = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount_point = Path(_unescape(fields[1]))
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= best_depth:
            best_depth, best_type = len(mount_point.parts), fields[2]
    return best_type


def _unescape(text: str) -> str:
    """The kernel writes space, tab, newline and backslash in mount points as octal escapes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
