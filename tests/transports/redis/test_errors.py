"""Every error of redis-py, and every one of the server, becomes one of ours."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from redis import exceptions as redis_errors

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    StorageFullError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)
from matador.transports.redis_client.connection import error_of
from matador.transports.redis_client.errors import is_gone, translate

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "AskError": ("1 host:1",),
    "MovedError": ("1 host:1",),
    "ClusterDownError": ("down",),
    "MasterDownError": ("down",),
}


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
    made = translate(error, "Redis at host:1", opening=opening)
    assert isinstance(made, MatadorError)
    assert made.__cause__ is error
    assert "Redis at host:1" in str(made)
    if is_gone(error):
        assert isinstance(made, ConnectionFailedError if opening else SendUnconfirmedError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'", StorageFullError),
        ("ERR script: -OOM command not allowed, on @user_script:1.", StorageFullError),
        ("MISCONF Errors writing to the AOF file: No space left on device", StorageFullError),
        ("READONLY You can't write against a read only replica", NotConnectedError),
        ("LOADING Redis is loading the dataset in memory", NotConnectedError),
        ("MASTERDOWN Link with MASTER is down", NotConnectedError),
        ("BUSY Redis is busy running a script.", NotConnectedError),
        ("WRONGTYPE Operation against a key", TransportError),
        ("NOPERM this user has no permissions", TransportError),
        ("CROSSSLOT Keys in request don't hash to the same slot", UnsupportedError),
        ("CLUSTERDOWN Hash slot not served", UnsupportedError),
        ("ERR something else", TransportError),
    ],
)
def test_what_the_server_says_is_named(text: str, expected: type[MatadorError]) -> None:
    assert type(translate(error_of(text), "Redis")) is expected


def test_an_outcome_that_is_not_known_is_said_to_be() -> None:
    error = translate(redis_errors.ConnectionError("reset by peer"), "Redis at host:1")
    assert "outcome is unknown" in str(error)


def test_a_text_that_cannot_be_encoded_is_unstorable() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "\udcff".encode()
    assert type(translate(caught.value, "Redis")) is UnstorableError


@pytest.mark.parametrize("text", ["OOM", "MISCONF", "NOREPLICAS", "READONLY", "LOADING", "BUSY"])
def test_what_passes_is_never_called_unstorable(text: str) -> None:
    passing = (StorageFullError, NotConnectedError)
    assert isinstance(translate(error_of(f"{text} what it says"), "Redis"), passing)


def test_our_own_errors_stay() -> None:
    ours = QueueNotFoundError("no such queue")
    assert translate(ours, "Redis") is ours
