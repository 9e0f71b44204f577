"""Every error of redis-py becomes one of ours, and none shows a password."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from redis import exceptions as redis_errors

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    SendUnconfirmedError,
    StorageFullError,
)
from matador.transports.bullmq import BullMQTransport
from matador.transports.bullmq.errors import translate

_ARGUMENTS: dict[str, tuple[Any, ...]] = {"AskError": ("1 host:1",), "MovedError": ("1 host:1",)}


def all_errors() -> list[type[Exception]]:
    found = [
        value
        for value in vars(redis_errors).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    ]
    assert len(found) > 30
    return found


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("opening", [True, False])
def test_every_error_of_the_client_is_translated(kind: type[Exception], opening: bool) -> None:
    error = kind(*_ARGUMENTS.get(kind.__name__, ("it failed",)))
    made = translate(error, "BullMQ on Redis at host:1", opening=opening)
    assert isinstance(made, MatadorError)
    assert made.__cause__ is error
    assert "BullMQ on Redis at host:1" in str(made)


def test_a_full_server_and_an_unknown_outcome_are_named() -> None:
    full = redis_errors.ResponseError("-OOM command not allowed when used memory > 'maxmemory'.")
    assert isinstance(translate(full, "x"), StorageFullError)
    assert isinstance(translate(redis_errors.TimeoutError(), "x"), SendUnconfirmedError)


async def test_a_server_that_is_not_there_is_named_without_credentials() -> None:
    transport = BullMQTransport("bullmq://user:secret@127.0.0.1:1/0", timeout=1)
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1") as caught:
        await transport.connect()
    assert "secret" not in f"{caught.value!r} {transport!r} {transport.state!r}"
    await transport.disconnect()
