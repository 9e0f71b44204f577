"""A password that the broker refuses, or that never reaches one, is seen by nobody else."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import pytest
from tests.support.brokers import broker_url

from matador.errors import ConnectionFailedError
from matador.transports import transport_from_url

SECRET = "hunter2/?#@:[ %2F"


def _refusing(scheme: str) -> str:
    server = urlsplit(broker_url("rabbitmq" if scheme == "amqp" else "redis"))
    return f"{scheme}://nobody:{quote(SECRET, safe='')}@{server.hostname}:{server.port}/0"


def _unreachable(scheme: str) -> str:
    return f"{scheme}://nobody:{quote(SECRET, safe='')}@127.0.0.1:1/0"


@pytest.mark.parametrize("where", [_refusing, _unreachable])
@pytest.mark.parametrize("scheme", ["amqp", "redis", "bullmq"])
async def test_a_connection_that_fails_shows_no_password(
    scheme: str, where: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    transport = transport_from_url(where(scheme))
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectionFailedError) as caught:
        await transport.connect()
    error: BaseException | None = caught.value
    shown = [caplog.text, repr(transport), repr(transport.state)]
    shown.append("".join(traceback.format_exception(caught.value, chain=True)))
    while error is not None:
        shown += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    for text in shown:
        assert "hunter2" not in text
    await transport.disconnect()
