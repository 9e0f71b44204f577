"""The client of the server: a supervised session that runs scripts in batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from matador.errors import MatadorError, NotConnectedError
from matador.model.message import ConnectionState
from matador.transports.bullmq.errors import is_wrong_type
from matador.transports.bullmq.options import BullMQAddress
from matador.transports.bullmq.scripts import USED, Argument, Call, connection_of, together
from matador.transports.bullmq.store_scripts import StoreScripts
from matador.transports.bullmq.wire import bull_name
from matador.transports.redis_client.client import ServerClient
from matador.transports.redis_client.connection import PipelinedConnection, forget
from matador.transports.redis_client.errors import is_gone, is_moved_on, translate

_NEAR = 20  # ms
_MOST_GROUPED = 50  # jobs in one script: the server does nothing else meanwhile
_LARGEST = 512 << 20  # bytes, unless the server has another limit


class BullMQSession:
    """A connected client that runs scripts, until it is lost. Times are those of the server.

    Scripts travel over one connection, in the order in which they are run. ``client`` has others,
    for transactions, for commands that block, and for those whose replies redis-py reads.
    """

    def __init__(
        self,
        client: Any,
        connection: PipelinedConnection,
        connect: Callable[[], Awaitable[PipelinedConnection]],
        prefix: str,
        where: str,
    ) -> None:
        self.client = client
        self.where = where
        self.lost = connection.lost
        self._pipelined = connection
        self._connect = connect
        self._blocking: set[PipelinedConnection] = set()
        self._connection = connection_of(client)
        self._prefix = prefix
        self._scripts: dict[str, StoreScripts] = {}
        self._ahead = 0.0
        self._last = self._last_near = 0
        self.largest = _LARGEST

    async def prepare(self) -> None:
        """Load the scripts, and ask for the server's time and its largest value."""
        await self.load()
        seconds, micros = await self.client.time()
        self._ahead = seconds + micros / 1e6 - time.monotonic()
        with contextlib.suppress(ResponseError):  # not every user may ask
            said = await self.client.config_get("proto-max-bulk-len")
            self.largest = int(said.get("proto-max-bulk-len", _LARGEST))

    async def load(self) -> None:
        """Load the scripts."""
        pipe = self.client.pipeline(transaction=False)
        for name in USED:
            pipe.script_load(self.command(name).script)
        await pipe.execute()

    def now(self) -> int:
        """The server's time in milliseconds."""
        return int((time.monotonic() + self._ahead) * 1000)

    def next_now(self) -> int:
        """``now``, but later than at the last call: what is ordered by it stays in order."""
        self._last = max(self.now(), self._last + 1)
        return self._last

    def almost_now(self) -> int:
        """``next_now``, but never far from ``now``: a few in a row stay in order."""
        now = self.now()
        self._last_near = min(max(now, self._last_near + 1), now + _NEAR)
        return self._last_near

    def scripts(self, queue: str) -> StoreScripts:
        """The calls for a queue of ours."""
        found = self._scripts.get(queue)
        if found is None:
            found = StoreScripts(self._prefix, bull_name(queue), self._connection)
            self._scripts[queue] = found
        return found

    def command(self, name: str) -> Any:
        """A script of the package."""
        return self._connection.commands[name]

    def fail(self, error: BaseException) -> None:
        self._pipelined.fail(error)

    async def connect_blocking(self) -> PipelinedConnection:
        """Another connection, for commands that block. It is closed with the session.

        Raises:
            TransportError: it cannot be made.
        """
        try:
            connection = await self._connect()
        except Exception as error:
            raise self.translated(error) from error
        self._blocking.add(connection)
        connection.lost.add_done_callback(lambda _: self._blocking.discard(connection))
        if self.lost.done():  # meanwhile
            await connection.close()
        return connection

    def command_of(self, call: Call) -> tuple[Argument, ...]:
        """A call of a script as a command."""
        sha = self.command(call.script).sha
        return ("EVALSHA", sha, len(call.keys), *call.keys, *call.arguments)

    def tell(self, *command: Argument) -> None:
        """Send a plain command whose outcome does not matter."""
        self._pipelined.call(*command).add_done_callback(forget)

    async def ask(self, *command: Any) -> Any:
        """The reply to a plain command.

        Raises:
            TransportError: it failed.
        """
        try:
            return await self.client.execute_command(*command)
        except Exception as error:
            raise self.translated(error) from error

    async def ask_all(
        self, calls: Sequence[Call | tuple[Any, ...]], *, together: bool = False
    ) -> list[Any]:
        """``run``, but errors are raised; a key that is not what it should be answers None."""
        if not calls:
            return []
        answers = await (self.run_together(calls) if together else self.run(calls))
        for index, answer in enumerate(answers):
            if is_wrong_type(answer):
                answers[index] = None
            elif isinstance(answer, MatadorError):
                raise answer
        return answers

    async def run(self, calls: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        """The replies to scripts and plain commands that travel together, in order.

        The reply of one that fails is its error, translated; the others run all the same.

        Raises:
            TransportError: the connection failed; the outcome is unknown.
        """
        answers = await self._run(calls, transaction=False)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:  # the server's scripts were flushed; these did nothing
            await self._load()
            again = await self._run([calls[i] for i in missing], transaction=False)
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return [self.plain(answer) for answer in answers]

    async def run_grouped(self, calls: Sequence[Call]) -> list[Any]:
        """``run``, with as few calls of scripts as possible. Those of one kind keep their order."""
        answers: list[Any] = [None] * len(calls)
        groups: dict[tuple[str, str, int] | int, list[int]] = {}
        for index, call in enumerate(calls):
            key = (call.script, call.alike, len(call.arguments)) if call.alike else index
            groups.setdefault(key, []).append(index)
        parts = [
            group[start : start + _MOST_GROUPED]
            for group in groups.values()
            for start in range(0, len(group), _MOST_GROUPED)
        ]
        made = [
            calls[part[0]] if len(part) == 1 else together([calls[index] for index in part])
            for part in parts
        ]
        for part, answer in zip(parts, await self.run(made), strict=True):
            if len(part) == 1 or isinstance(answer, MatadorError):
                found = [answer] * len(part)
            else:
                found = [self.plain(one) for one in answer]
            for index, one in zip(part, found, strict=True):
                answers[index] = one
        return answers

    async def run_together(self, calls: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        """``run`` in one transaction."""
        answers = await self._run(calls, transaction=True)
        if any(isinstance(answer, NoScriptError) for answer in answers):
            await self._load()
            answers = await self._run(calls, transaction=True)
        return [self.plain(answer) for answer in answers]

    async def _run(
        self, calls: Sequence[Call | tuple[Any, ...]], *, transaction: bool
    ) -> list[Any]:
        scripts = [call for call in calls if isinstance(call, Call)]
        if not transaction and len(scripts) == len(calls):
            return await self._run_scripts(scripts)
        pipe = self.client.pipeline(transaction=transaction)
        for call in calls:
            if isinstance(call, Call):
                sha = self.command(call.script).sha
                pipe.evalsha(sha, len(call.keys), *call.keys, *call.arguments)
            else:
                pipe.execute_command(*call)
        try:
            return await pipe.execute(raise_on_error=False)
        except Exception as error:
            raise self.translated(error) from error

    async def _run_scripts(self, calls: Sequence[Call]) -> list[Any]:
        answers: list[Any] = []
        futures: list[asyncio.Future[Any]] = []
        try:
            futures = self._pipelined.call_all([self.command_of(call) for call in calls])
            for future in futures:
                try:
                    answers.append(await future)
                except ResponseError as error:
                    answers.append(error)
        except BaseException as error:
            for future in futures:
                future.add_done_callback(forget)
            if not isinstance(error, Exception):
                raise
            raise self.translated(error) from error
        return answers

    async def _load(self) -> None:
        try:
            await self.load()
        except Exception as error:
            raise self.translated(error) from error

    def plain(self, answer: Any) -> Any:
        """An answer; the error of this package for one that is an error."""
        return self.translated(answer) if isinstance(answer, Exception) else answer

    def translated(self, error: BaseException) -> MatadorError:
        """The error of this package for one of redis-py; gives up a session that is useless."""
        if is_gone(error) or is_moved_on(error):
            self.fail(error)
        return translate(error, self.where)

    async def drain(self) -> None:
        """See ``ServerConnection``. Commands of ``client`` are awaited by their callers."""
        await self._pipelined.drain()

    async def close(self) -> None:
        self.fail(NotConnectedError("disconnected"))
        for connection in (self._pipelined, *self._blocking):
            await connection.close()
        with contextlib.suppress(Exception):
            await self.client.aclose()


class BullMQClient(ServerClient[BullMQSession]):
    """Keeps a session, and makes a new one when it is lost.

    Args:
        address: where the server is, and how to connect.
        restore, on_state: see ``ServerClient``.
    """

    def __init__(
        self,
        address: BullMQAddress,
        *,
        restore: Callable[[BullMQSession], Awaitable[None]],
        on_state: Callable[[ConnectionState], None],
    ) -> None:
        super().__init__(address.where, restore=restore, on_state=on_state, backoff=address.backoff)
        self._address = address

    # -- for the supervisor ------------------------------------------------------------------------

    async def open(self) -> BullMQSession:
        address = self._address
        ((host, port),) = address.hosts
        pool = _Pool(
            connection_class=SSLConnection if address.tls else Connection,
            host=host,
            port=port,
            db=address.db,
            username=address.user,
            password=address.password,
            client_name=f"matador-{address.name}",
            protocol=2,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            socket_keepalive=True,
            # Nothing is sent twice behind our back: the outcome of the first time is unknown.
            retry=Retry(NoBackoff(), 0),
            **(address.tls_options if address.tls else {}),
        )
        client: Any = redis.asyncio.Redis.from_pool(pool)

        async def connect() -> PipelinedConnection:
            connection = pool.make_connection()
            try:
                await connection.connect()
            except BaseException:  # cancelled in the handshake, it would stay open
                await connection.disconnect(nowait=True)
                raise
            return PipelinedConnection(
                connection, timeout=address.timeout, heartbeat=address.heartbeat
            )

        session: BullMQSession | None = None
        try:
            session = BullMQSession(client, await connect(), connect, address.prefix, self.where)
            await session.prepare()
            _check_cancelled()
        except BaseException as error:
            await (client.aclose() if session is None else session.close())
            _check_cancelled()
            if not isinstance(error, Exception):
                raise
            raise translate(error, self.where, opening=True) from error
        return session


class _Pool(ConnectionPool):
    """A pool that stays closed.

    A command that is in flight while redis-py closes its pool connects again, and returns an open
    connection to a pool that nobody closes a second time.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._closed = False

    async def release(self, connection: AbstractConnection) -> None:
        await super().release(connection)
        if self._closed:
            await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        self._closed = True
        await super().aclose()


def _check_cancelled() -> None:
    """Raise ``CancelledError`` if this task was cancelled: the client sometimes swallows it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
