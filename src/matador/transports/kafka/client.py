"""The connection to a cluster: the admin client, the producer, and whether brokers answer.

The client library reconnects by itself. The connection counts as lost when no broker can be
reached, and as restored when one has answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import (
    MatadorError,
    NotConnectedError,
    SendTimeoutError,
    SendUnconfirmedError,
    TimeoutError,
)
from matador.model.message import ConnectionState
from matador.transports.kafka.errors import is_refusal, translate
from matador.transports.kafka.options import KafkaAddress
from matador.transports.kafka.producer import KafkaProducer
from matador.transports.kit.backoff import Backoff
from matador.transports.supervisor import ConnectionSupervisor

T = TypeVar("T")

_SHORT_OUTAGE = 1.0
_STARTUP = 2.0  # seconds for which brokers that refuse the first connection may be starting
_TRIES = 5
_DOWN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION)


class _Session:
    """The time from a connection to its loss."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.lost.done():
            self.lost.set_result(error)


class KafkaClient:
    """Everything that talks to one cluster, except consumers."""

    def __init__(self, address: KafkaAddress, on_state: Callable[[ConnectionState], None]) -> None:
        self.address = address
        self.where = address.where
        self._admin: Any = None
        self._producer: KafkaProducer | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._session: _Session | None = None
        self._was_connected = False
        self._trims: set[asyncio.Task[None]] = set()
        self._supervisor: ConnectionSupervisor[_Session] = ConnectionSupervisor(
            self._open, self._wait_lost, self._restored, backoff=address.backoff, on_state=on_state
        )

    @property
    def is_connected(self) -> bool:
        return self._supervisor.state.status == "connected"

    @property
    def producer(self) -> KafkaProducer:
        """The producer, which exists from ``start`` to ``stop``.

        Raises:
            NotConnectedError: not started.
        """
        if self._producer is None:
            raise self._supervisor.state.refusal(f"not connected to {self.where}")
        return self._producer

    async def start(self) -> None:
        """Connect. From then on, report when the connection is lost and restored."""
        try:
            await self._supervisor.start()
        except BaseException:
            await self._drop()
            raise

    async def stop(self) -> None:
        await self._supervisor.stop()
        await self._drop()

    async def require(self) -> None:
        """Return if connected; wait up to a second for a connection that is lost.

        Raises:
            NotConnectedError: not connected.
        """
        if self.is_connected:
            return
        state = self._supervisor.state
        if state.status != "reconnecting":
            raise state.refusal(f"not connected to {self.where}")
        try:
            await self._supervisor.wait_connected(_SHORT_OUTAGE)
        except TimeoutError:
            raise NotConnectedError(
                f"{self.where} cannot be reached; trying again"
            ) from self._supervisor.state.error

    def failed(self, error: KafkaError) -> None:
        """Receive an error of any librdkafka client, in any thread."""
        session = self._session
        if session is None or error.code() not in _DOWN:
            return
        found = translate(error, self.where, opening=True)
        with suppress(RuntimeError):  # the loop is closed
            session.lost.get_loop().call_soon_threadsafe(session.fail, found)

    async def ask(
        self, call: Callable[[Any], dict[Any, Future[T]]], *, queue: str = ""
    ) -> dict[Any, T | MatadorError]:
        """Ask the admin client; for each key the result, or why there is none.

        Repeats the question while a broker cannot answer yet.
        """
        backoff = Backoff(0.05, 1.0)
        for last in (*[False] * (_TRIES - 1), True):
            try:
                futures = call(self._admin)
            except (KafkaException, ValueError, TypeError) as error:
                raise translate(error, self.where, queue=queue) from error
            found: dict[Any, T | MatadorError] = {}
            for key, future in futures.items():
                found[key] = await self._outcome(future, queue or str(getattr(key, "topic", key)))
            passing = [one for one in found.values() if isinstance(one, SendUnconfirmedError)]
            if last or not passing or not self.is_connected:
                return found
            await backoff.sleep()
        raise AssertionError("unreachable")

    async def identities(self, topics: Sequence[str]) -> dict[str, str]:
        """The ids of existing topics, which change when a topic is deleted and recreated.

        Raises:
            MatadorError: the question could not be asked.
        """
        names = TopicCollection(list(topics))
        found = await self.ask(lambda admin: admin.describe_topics(names))
        return {
            topic: str(one.topic_id)
            for topic, one in found.items()
            if not isinstance(one, MatadorError)
        }

    async def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offset behind the last record of each partition that answers.

        Raises:
            MatadorError: the question could not be asked.
        """
        asked: Any = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        answers = await self.ask(lambda admin: admin.list_offsets(asked), queue=topic)
        return {
            place.partition: answer.offset
            for place, answer in answers.items()
            if not isinstance(answer, MatadorError)
        }

    def trim(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records of partitions before these offsets, in the background.

        An error is ignored: a later call deletes them, too.
        """
        places = [TopicPartition(topic, number, at) for number, at in offsets.items() if at > 0]
        if places and self._admin is not None:
            task = asyncio.create_task(self._trim(places))
            self._trims.add(task)
            task.add_done_callback(self._trims.discard)

    async def _trim(self, places: list[TopicPartition]) -> None:
        with suppress(MatadorError):
            await self.ask(lambda admin: admin.delete_records(places))

    async def blocking(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread.

        Raises:
            MatadorError: the call has failed.
        """
        assert self._threads is not None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except KafkaException as error:
            raise translate(error, self.where) from error

    def cluster(self) -> Any:
        """The brokers and topics, as the client library describes them. Blocks."""
        return self._admin.list_topics(timeout=self.address.timeout)

    async def settings_of(self, resource: ConfigResource) -> dict[str, str]:
        """The settings of a broker or a topic; empty if this user may not read them."""
        answers = await self.ask(lambda admin: admin.describe_configs([resource]))
        found: Any = next(iter(answers.values()), None)
        if found is None or isinstance(found, MatadorError):
            return {}
        return {name: str(entry.value) for name, entry in found.items() if entry.value is not None}

    async def _outcome(self, future: Future[T], queue: str) -> T | MatadorError:
        try:
            async with asyncio.timeout(self.address.timeout + 1):
                return await asyncio.wrap_future(future)
        except KafkaException as error:
            return translate(error, self.where, queue=queue)
        except builtin_timeout:
            return SendTimeoutError(f"{self.where} did not answer in time")

    # -- for the supervisor ------------------------------------------------------------------------

    async def _open(self) -> _Session:
        session = self._session = _Session()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4, thread_name_prefix="matador-kafka")
        try:
            if self._admin is None:
                self._admin = AdminClient(self.address.client_settings())
            if self._producer is None:
                self._producer = KafkaProducer(
                    self.address.producer_settings(),
                    self.where,
                    self.failed,
                    limit=self.address.max_message_size,
                )
            await self._first_answer(session)
        except (KafkaException, MatadorError, ValueError, TypeError) as error:
            await asyncio.sleep(0)  # an error of the client library says more than a timeout
            if session.lost.done():
                found = session.lost.result()
                raise found from found.__cause__
            raise translate(error, self.where, opening=True) from error
        if session.lost.done():
            session = self._session = _Session()  # errors before the first answer do not count
        return session

    async def _first_answer(self, session: _Session) -> None:
        """Wait until a broker has answered, or the brokers refuse the connection."""
        answer = asyncio.wrap_future(_in_daemon_thread(self.cluster))
        try:
            await asyncio.wait([answer, session.lost], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and not self._was_connected:
                grace = 0.0 if is_refusal(session.lost.result()) else _STARTUP
                await asyncio.wait([answer], timeout=grace)
                if not answer.done():
                    raise session.lost.result()
            await answer
        finally:
            answer.cancel()
        self._was_connected = True

    async def _wait_lost(self, session: _Session) -> BaseException:
        return await asyncio.shield(session.lost)

    async def _restored(self, session: _Session) -> None:
        """Nothing to do: librdkafka reconnects consumers and producers."""

    async def _drop(self) -> None:
        self._session = None
        self._was_connected = False
        if self._trims:
            await asyncio.wait(self._trims, timeout=self.address.timeout)
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
        self._admin = None
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


def _in_daemon_thread(call: Callable[[], T]) -> Future[T]:
    """Run a blocking call in a daemon thread, which the interpreter does not wait for."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, name="matador-kafka-first", daemon=True).start()
    return done


builtin_timeout = asyncio.TimeoutError  # not ``matador.errors.TimeoutError``
