"""A real Prometheus of one's own: Debian's package on a new data folder, on loopback, gone afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.integration.ports import free_port

_START_S = 60.0


def server_program() -> str | None:
    """Where Prometheus is; None when it is not installed."""
    return shutil.which("prometheus", path="/usr/bin:/usr/local/bin:/bin")


class PrometheusServer:
    """Asks a running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an API answer; AssertionError with the server's words when it refuses."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - of this machine
            document = json.loads(answer.read())
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return list(self.get("/api/v1/query", query=expression)["result"])

    def wait_for(self, ready: Callable[[], bool], *, limit_s: float = 120.0) -> None:
        """Ask again and again until it is so."""
        until = time.monotonic() + limit_s
        while not ready():
            assert time.monotonic() < until, "it never came"
            time.sleep(0.3)


@contextmanager
def prometheus_server(targets: list[str], *, rules: Path) -> Iterator[PrometheusServer]:
    """A server that scrapes these targets each second and evaluates these rules."""
    program = server_program()
    if program is None:
        raise FileNotFoundError("no Prometheus is installed (Debian: apt-get install prometheus)")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="planner-prometheus-") as name:
        folder = Path(name)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "meshplan", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        command = [program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            asked = PrometheusServer(port)
            asked.wait_for(lambda: _answers(port, server, folder / "log"), limit_s=_START_S)
            yield asked
        finally:
            server.terminate()
            server.wait(timeout=30)


def _answers(port: int, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text(errors="replace")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
