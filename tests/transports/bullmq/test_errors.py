"""Errors show no password; what redis-py raises is translated as for Redis itself."""

from __future__ import annotations

import pytest

from matador.errors import ConnectionFailedError
from matador.transports.bullmq import BullMQTransport


async def test_a_server_that_is_not_there_is_named_without_credentials() -> None:
    transport = BullMQTransport("bullmq://user:secret@127.0.0.1:1/0", timeout=1)
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1") as caught:
        await transport.connect()
    assert "secret" not in f"{caught.value!r} {transport!r} {transport.state!r}"
    await transport.disconnect()
