"""SQS for tests: servers of their own, a plain client to look from outside, and tidying up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiobotocore.session import AioSession
from tests.support.brokers import SCRIPT
from tests.support.ports import free_ports

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
"""What ElasticMQ is told: it accepts anything."""


class OwnElasticMQ:
    """A server that a test may kill and start again. Every message is on its disk, if it
    ``stores`` them."""

    def __init__(self, folder: Path, *, stores: bool = True) -> None:
        shared = Path(os.environ.get("MATADOR_BROKERS_FOLDER", SCRIPT.parents[1] / ".brokers"))
        library = shared / "sqs" / "lib"
        if not library.is_dir():
            reason = "there is no ElasticMQ: script/brokers up sqs downloads it"
            if os.environ.get("CI", "").lower() in ("1", "true"):
                pytest.fail(reason)
            pytest.skip(reason)
        self.port = free_ports()
        self._environment = {
            **os.environ,
            "MATADOR_BROKERS_FOLDER": str(folder),
            "MATADOR_SQS_LIB": str(library),
            "MATADOR_SQS_PORT": str(self.port),
            "MATADOR_SQS_STORES": "true" if stores else "false",
        }

    @property
    def url(self) -> str:
        return f"sqs://eu-west-1?endpoint=http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._run("up")

    def kill(self) -> None:
        self._run("kill")

    def restart(self) -> None:
        self.kill()
        self.start()

    def _run(self, action: str) -> None:
        command = [str(SCRIPT), action, "sqs"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@cache
def _session() -> Any:
    """One for all clients: it reads the description of SQS, which is large, once."""
    return AioSession()


@asynccontextmanager
async def sqs_client(url: str) -> AsyncGenerator[Any]:
    """A plain client for the server of a transport's URL."""
    endpoint = parse_qs(urlsplit(url).query)["endpoint"][0]
    async with _session().create_client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=endpoint,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    ) as client:
        yield client


async def forget_queues(url: str, prefix: str) -> None:
    """Delete all queues whose names on SQS begin like this."""
    async with sqs_client(url) as client:
        answer = await client.list_queues(QueueNamePrefix=prefix)
        for queue in answer.get("QueueUrls", []):
            await client.delete_queue(QueueUrl=queue)
