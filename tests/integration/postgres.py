"""A real PostgreSQL of one's own: a server of Debian's package on a new data folder, on loopback, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.ports import free_port

USER = "planner"
PASSWORD = "open sesame"  # noqa: S105 - of a server that lives for one test; a space shows whether URLs are quoted
_START_S = 60.0


def server_programs() -> Path | None:
    """The folder of `initdb` and `postgres`: Debian keeps it off PATH. None when no server is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database on a server that runs while the body does; its password is quoted in it."""
    programs = server_programs()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="planner-postgres-") as name:
        folder, user = Path(name), _unprivileged()
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data, port = folder / "data", free_port()
        authentication = ["--auth=scram-sha-256", f"--username={USER}", f"--pwfile={secret}"]
        _run([str(programs / "initdb"), "--no-sync", *authentication, "-D", str(data)], user)
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, **_as_user(user))
        try:
            _wait_until_it_answers(programs, port, server, folder / "log")
            yield f"postgresql://{USER}:open%20sesame@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as_user(user: pwd.struct_passwd | None) -> dict[str, object]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


def _run(command: list[str], user: pwd.struct_passwd | None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **_as_user(user))
    assert done.returncode == 0, done.stdout + done.stderr


def _wait_until_it_answers(programs: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text(errors="replace")
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace"))
