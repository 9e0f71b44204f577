"""The client library: the private part that we use is as it was when this was written.

If one of these fails after an upgrade, look at ``PipelinedConnection``, which takes the connection
over from redis-py, before the upper bound in ``pyproject.toml`` is raised.
"""

from __future__ import annotations

import asyncio
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import Connection
from tests.support.redis import OwnServer


@pytest.mark.broker
async def test_a_connection_has_the_writer_that_is_taken_over(server: OwnServer) -> None:
    connection: Any = Connection(host="127.0.0.1", port=server.port, protocol=2)
    await connection.connect()
    writer = connection._writer
    assert isinstance(writer, asyncio.StreamWriter)
    assert isinstance(writer.transport, asyncio.Transport)
    await connection.disconnect()
    assert writer.is_closing()


def test_the_extra_allows_no_major_version_that_was_not_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    major = int(version("redis").split(".")[0])
    (extra,) = project["project"]["optional-dependencies"]["redis"]
    assert extra.endswith(f",<{major + 1}")
