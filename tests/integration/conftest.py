"""A PostgreSQL server for the tests of a run that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres import postgres_server, server_programs


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """An empty database on a real server."""
    if server_programs() is None:
        pytest.skip("needs a PostgreSQL server (Debian: apt-get install postgresql)")
    with postgres_server() as url:
        yield url
