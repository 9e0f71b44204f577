"""A store that is unavailable is waited for."""

from __future__ import annotations

import asyncio

import pytest

from matador.errors import StoreUnavailableError
from matador.runtime import stores
from matador.runtime.stores import patiently


class Store:
    """Fails as often as it is told to, then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def call(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


class Time:
    """Passes as fast as it is slept away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(stores.time, "monotonic", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


async def test_an_answer_is_returned_at_once(
    passing: Time, caplog: pytest.LogCaptureFixture
) -> None:
    assert await patiently(Store().call, "the store: load", sleep=passing.sleep) == "answer"
    assert (passing.pauses, caplog.records) == ([], [])


@pytest.mark.parametrize("limit", [None, 600.0])
async def test_a_store_that_comes_back_answers_and_is_logged_once(
    passing: Time, limit: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(*[OSError("no route")] * 20)
    found = await patiently(store.call, "the store: load", limit, passing.sleep)
    assert (found, store.calls) == ("answer", 21)
    assert [one.message for one in caplog.records] == ["the store: load: no route; waiting for it"]
    assert len(passing.pauses) == 20
    assert 0 < passing.pauses[0] <= 0.1
    assert max(passing.pauses) <= 2.0
    assert max(passing.pauses[10:]) > max(passing.pauses[:2]), "they grow"


async def test_after_the_limit_it_gives_up(passing: Time) -> None:
    error = OSError("no route")
    store = Store(*[error] * 1000)
    with pytest.raises(StoreUnavailableError, match=r"the store: load: no route, for 1\d s") as out:
        await patiently(store.call, "the store: load", 10.0, passing.sleep)
    assert out.value.__cause__ is error
    assert 10 <= passing.now < 13


async def test_without_a_limit_it_never_does(passing: Time) -> None:
    store = Store(*[OSError("no route")] * 5000)
    assert await patiently(store.call, "the store", None, passing.sleep) == "answer"
    assert passing.now > 3600


async def test_an_error_that_would_come_again_is_raised_at_once(passing: Time) -> None:
    store = Store(OSError("once"), ValueError("too long"))
    with pytest.raises(ValueError, match="too long"):
        await patiently(store.call, "it", sleep=passing.sleep, permanent=(TypeError, ValueError))
    assert (store.calls, len(passing.pauses)) == (2, 1)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
async def test_what_ends_the_worker_ends_the_waiting(error: BaseException, passing: Time) -> None:
    store = Store(OSError("no route"), error)
    with pytest.raises(type(error)):
        await patiently(store.call, "the store", sleep=passing.sleep)
    assert store.calls == 2
