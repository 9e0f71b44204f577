"""The supervisor keeps a connection alive, whatever the broker does."""

from __future__ import annotations

import asyncio

import pytest

from matador.errors import ConnectionFailedError, NotConnectedError, TimeoutError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState
from matador.testing import ManualClock, wait_for
from matador.transports.supervisor import ConnectionSupervisor


class FlakyBroker:
    """An adapter whose connections can be cut, and whose attempts can be made to fail."""

    def __init__(self) -> None:
        self.down: Exception | None = None
        self.restore_fails: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.attempts = 0
        self.running = 0
        self.most_running = 0
        self.restored: list[int] = []
        self.lost: dict[int, asyncio.Future[BaseException | None]] = {}

    async def connect(self) -> int:
        self.attempts += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            await self.answers.wait()
            if self.down is not None:
                raise self.down
        finally:
            self.running -= 1
        self.lost[self.attempts] = asyncio.get_running_loop().create_future()
        return self.attempts

    async def wait_lost(self, connection: int) -> BaseException | None:
        return await self.lost[connection]

    async def restore(self, connection: int) -> None:
        if self.restore_fails is not None:
            raise self.restore_fails
        self.restored.append(connection)

    def cut(self, connection: int, reason: BaseException | None = None) -> None:
        self.lost[connection].set_result(reason)


class Rig:
    """A supervisor over a flaky broker, on a clock that the test moves."""

    def __init__(self, backoff: ReconnectBackoff | None = None, random: float = 0.0) -> None:
        self.broker = FlakyBroker()
        self.clock = ManualClock()
        self.states: list[ConnectionState] = []
        self.supervisor = ConnectionSupervisor(
            self.broker.connect,
            self.broker.wait_lost,
            self.broker.restore,
            backoff=backoff or ReconnectBackoff(base_delay=1, max_delay=8, jitter=0),
            on_state=self.states.append,
            sleep=self.clock.sleep,
            random=lambda: random,
        )

    @property
    def statuses(self) -> list[str]:
        return [state.status for state in self.states]

    async def sleeping(self) -> None:
        await wait_for(lambda: self.clock.alarms == 1, message="the wait before an attempt")

    async def until(self, status: str, attempt: int = 0) -> None:
        expected = (status, attempt)
        await wait_for(
            lambda: (self.supervisor.state.status, self.supervisor.state.attempt) == expected,
            message=f"{expected}",
        )


async def test_it_connects_restores_and_reports() -> None:
    rig = Rig()
    assert rig.supervisor.state.status == "disconnected"
    await rig.supervisor.start()
    assert rig.statuses == ["connecting", "connected"]
    assert rig.broker.restored == [1]
    assert rig.supervisor.connection == 1
    assert await rig.supervisor.wait_connected(timeout=0) == 1
    await rig.supervisor.stop()
    assert rig.statuses == ["connecting", "connected", "disconnected"]


async def test_a_first_connection_that_fails_is_an_error_at_once() -> None:
    rig = Rig()
    rig.broker.down = OSError("refused")
    with pytest.raises(ConnectionFailedError, match="refused") as caught:
        await rig.supervisor.start()
    assert isinstance(caught.value.__cause__, OSError)
    assert rig.statuses == ["connecting", "failed"]
    with pytest.raises(NotConnectedError):
        await rig.supervisor.wait_connected(timeout=0)
    # And it can be tried again.
    rig.broker.down = None
    await rig.supervisor.start()
    assert rig.supervisor.state.status == "connected"
    await rig.supervisor.stop()


async def test_an_adapters_own_connection_error_is_raised_as_it_is() -> None:
    rig = Rig()
    rig.broker.down = ConnectionFailedError("wrong password")
    with pytest.raises(ConnectionFailedError) as caught:
        await rig.supervisor.start()
    assert caught.value is rig.broker.down


async def test_a_lost_connection_is_made_again_and_restored() -> None:
    rig = Rig()
    await rig.supervisor.start()
    reason = OSError("reset by peer")
    rig.broker.cut(1, reason)
    await rig.until("reconnecting", 1)
    assert rig.supervisor.state.error is reason
    with pytest.raises(NotConnectedError):
        _ = rig.supervisor.connection
    waiting = asyncio.create_task(rig.supervisor.wait_connected(timeout=5))
    await rig.sleeping()
    rig.clock.advance(1)
    assert await waiting == 2
    assert rig.broker.restored == [1, 2]
    assert rig.statuses == ["connecting", "connected", "reconnecting", "connected"]
    await rig.supervisor.stop()


async def test_it_waits_longer_each_time_and_starts_anew_once_connected() -> None:
    rig = Rig()
    await rig.supervisor.start()
    rig.broker.down = OSError("refused")
    rig.broker.cut(1)
    for attempt, wait in enumerate([1, 2, 4, 8, 8], start=1):
        await rig.until("reconnecting", attempt)
        await rig.sleeping()
        rig.clock.advance(wait - 0.001)
        assert rig.broker.attempts == attempt, "not before its time"
        rig.clock.advance(0.001)
        if attempt == 5:
            rig.broker.down = None
    await rig.until("connected")
    rig.broker.cut(rig.supervisor.connection)
    await rig.until("reconnecting", 1)
    await rig.sleeping()
    rig.clock.advance(1)
    await rig.until("connected")
    await rig.supervisor.stop()


async def test_jitter_shortens_the_wait() -> None:
    rig = Rig(ReconnectBackoff("linear", base_delay=1, jitter=0.5), random=0.5)
    await rig.supervisor.start()
    rig.broker.cut(1)
    await rig.sleeping()
    rig.clock.advance(0.75)
    await rig.until("connected")
    await rig.supervisor.stop()


async def test_it_gives_up_after_the_last_attempt() -> None:
    rig = Rig(ReconnectBackoff("immediate", base_delay=0, max_attempts=3))
    await rig.supervisor.start()
    waiting = asyncio.create_task(rig.supervisor.wait_connected(timeout=5))
    rig.broker.down = OSError("refused")
    rig.broker.cut(1)
    assert await waiting == 1
    for _ in range(3):
        await rig.sleeping()
        rig.clock.advance(0)
    await rig.until("failed", 3)
    assert rig.broker.attempts == 4
    with pytest.raises(NotConnectedError) as caught:
        await rig.supervisor.wait_connected(timeout=5)
    assert caught.value.__cause__ is rig.broker.down
    await rig.supervisor.stop()


async def test_who_waits_is_told_when_it_gives_up() -> None:
    rig = Rig(ReconnectBackoff("immediate", max_attempts=1))
    await rig.supervisor.start()
    rig.broker.down = OSError("refused")
    rig.broker.cut(1)
    await rig.sleeping()
    waiting = asyncio.create_task(rig.supervisor.wait_connected(timeout=5))
    rig.clock.advance(0)
    with pytest.raises(NotConnectedError):
        await waiting


async def test_waiting_has_a_limit() -> None:
    rig = Rig()
    await rig.supervisor.start()
    rig.broker.cut(1)
    await rig.until("reconnecting", 1)
    with pytest.raises(TimeoutError, match="not connected"):
        await rig.supervisor.wait_connected(timeout=0.01)
    await rig.supervisor.stop()


async def test_a_restore_that_fails_is_a_failed_attempt() -> None:
    rig = Rig()
    await rig.supervisor.start()
    rig.broker.restore_fails = OSError("queue gone")
    rig.broker.cut(1)
    await rig.sleeping()
    rig.clock.advance(1)
    await rig.until("reconnecting", 2)
    assert rig.supervisor.state.error is rig.broker.restore_fails
    rig.broker.restore_fails = None
    await rig.sleeping()
    rig.clock.advance(2)
    await rig.until("connected")
    await rig.supervisor.stop()


async def test_a_client_library_that_cancels_itself_counts_as_lost() -> None:
    rig = Rig()
    await rig.supervisor.start()
    rig.broker.lost[1].cancel()
    await rig.until("reconnecting", 1)
    await rig.sleeping()
    rig.clock.advance(1)
    await rig.until("connected")
    await rig.supervisor.stop()


async def test_starting_twice_connects_once() -> None:
    rig = Rig()
    await asyncio.gather(rig.supervisor.start(), rig.supervisor.start())
    await rig.supervisor.start()
    assert (rig.broker.attempts, rig.broker.most_running) == (1, 1)
    await rig.supervisor.stop()


async def test_start_while_reconnecting_does_not_overlap() -> None:
    rig = Rig()
    await rig.supervisor.start()
    rig.broker.cut(1)
    await rig.sleeping()
    await rig.supervisor.start()
    rig.clock.advance(1)
    await rig.until("connected")
    assert (rig.broker.attempts, rig.broker.most_running) == (2, 1)
    await rig.supervisor.stop()


async def test_stop_ends_a_wait_and_nothing_follows() -> None:
    rig = Rig()
    await rig.supervisor.stop()
    assert rig.states == []
    await rig.supervisor.start()
    rig.broker.cut(1)
    await rig.sleeping()
    await rig.supervisor.stop()
    await rig.supervisor.stop()
    assert rig.clock.alarms == 0
    assert rig.statuses[-1] == "disconnected"
    assert rig.broker.attempts == 1


async def test_stop_while_connecting_tells_who_started() -> None:
    rig = Rig()
    rig.broker.answers.clear()
    starting = asyncio.create_task(rig.supervisor.start())
    await rig.until("connecting")
    await rig.supervisor.stop()
    with pytest.raises(NotConnectedError, match="stopped"):
        await starting
    assert rig.supervisor.state.status == "disconnected"


async def test_a_cancelled_start_leaves_nothing_running() -> None:
    rig = Rig()
    rig.broker.answers.clear()
    starting = asyncio.create_task(rig.supervisor.start())
    await rig.until("connecting")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert rig.supervisor.state.status == "disconnected"
    assert (rig.broker.attempts, rig.broker.running) == (1, 0)
