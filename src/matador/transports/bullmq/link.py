"""The link to the server: a supervised client, and scripts that run over it in batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from matador.errors import MatadorError, NotConnectedError, TimeoutError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState
from matador.transports.bullmq.names import bull_name
from matador.transports.bullmq.scripts import USED, Call, JobScripts, connection_of
from matador.transports.bullmq.url import BullMQUrl
from matador.transports.redis_client.address import tls_options
from matador.transports.redis_client.errors import is_gone, is_moved_on, translate
from matador.transports.supervisor import ConnectionSupervisor

# Quick at first: a server that restarts is back within a second or two.
BACKOFF = ReconnectBackoff(base_delay=0.1, max_delay=2.0)
_SHORT_OUTAGE = 1.0
_LARGEST = 512 << 20  # bytes, unless the server has another limit


class Session:
    """A client that is connected, until it is lost. Times are those of the server."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._connection = connection_of(client)
        self._prefix = prefix
        self._scripts: dict[str, JobScripts] = {}
        self._ahead = 0.0
        self._last = 0
        self.largest = _LARGEST

    async def prepare(self) -> None:
        """Load the scripts, and learn what time it is there, and how large a value may be."""
        await self.load()
        seconds, micros = await self.client.time()
        self._ahead = seconds + micros / 1e6 - time.monotonic()
        with contextlib.suppress(ResponseError):  # not everybody may ask
            said = await self.client.config_get("proto-max-bulk-len")
            self.largest = int(said.get("proto-max-bulk-len", _LARGEST))

    async def load(self) -> None:
        """Make the server know the scripts."""
        pipe = self.client.pipeline(transaction=False)
        for name in USED:
            pipe.script_load(self.command(name).script)
        await pipe.execute()

    def now(self) -> int:
        """The server's time in milliseconds."""
        return int((time.monotonic() + self._ahead) * 1000)

    def next_now(self) -> int:
        """``now``, but later than the last time: what is in order of it stays in order."""
        self._last = max(self.now(), self._last + 1)
        return self._last

    def scripts(self, queue: str) -> JobScripts:
        """The calls for a queue of ours."""
        found = self._scripts.get(queue)
        if found is None:
            found = JobScripts(self._prefix, bull_name(queue), self._connection)
            self._scripts[queue] = found
        return found

    def command(self, name: str) -> Any:
        """A script of the package."""
        return self._connection.commands[name]

    def fail(self, error: BaseException) -> None:
        """It is of no use any more."""
        if not self.lost.done():
            self.lost.set_result(error)


class Link:
    """Scripts for the server, over a client that is made again when it is lost.

    Args:
        url: where the server is.
        timeout: seconds an answer may take.
        heartbeat: seconds between questions whether the server is still there.
        restore: called with every new session, before it is used.
        on_state: told every change of state.
    """

    def __init__(
        self,
        url: BullMQUrl,
        *,
        prefix: str,
        name: str,
        timeout: float,
        heartbeat: float,
        restore: Callable[[Session], Awaitable[None]],
        on_state: Callable[[ConnectionState], None],
    ) -> None:
        self.where = url.where
        self._url = url
        self._prefix = prefix
        self._name = name
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._restore_more = restore
        self._session: Session | None = None
        self._supervisor = ConnectionSupervisor(
            self._connect, self._wait_lost, self._restore, backoff=BACKOFF, on_state=on_state
        )

    @property
    def state(self) -> ConnectionState:
        """Where the connection stands."""
        return self._supervisor.state

    async def start(self) -> None:
        """Connect, and stay connected from then on."""
        await self._supervisor.start()

    async def stop(self) -> None:
        """Drop the connection."""
        await self._supervisor.stop()
        await self._drop()

    async def wait_connected(self) -> Session:
        """The session, once there is one.

        Raises:
            NotConnectedError: there will be none.
        """
        return await self._supervisor.wait_connected()

    async def session(self) -> Session:
        """The session; waits a moment for one that is just being made again.

        Raises:
            NotConnectedError: there is none.
        """
        try:
            return self._supervisor.connection
        except NotConnectedError:
            if self.state.status != "reconnecting":
                raise NotConnectedError(f"not connected to {self.where}") from self.state.error
        try:
            return await self._supervisor.wait_connected(_SHORT_OUTAGE)
        except TimeoutError:
            raise NotConnectedError(
                f"the connection to {self.where} is lost and being made again"
            ) from self.state.error

    async def ask(self, session: Session, *command: Any) -> Any:
        """The answer to a plain command.

        Raises:
            TransportError: it failed.
        """
        try:
            return await session.client.execute_command(*command)
        except Exception as error:
            raise self.translated(session, error) from error

    async def run(self, session: Session, calls: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        """The answers to scripts and plain commands that travel together, in order.

        One that fails is its error, translated; the others are not kept from running.

        Raises:
            TransportError: the connection failed; nobody knows what was done.
        """
        answers = await self._run(session, calls, transaction=False)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:  # the server's scripts were flushed; these did nothing
            await self._load(session)
            again = await self._run(session, [calls[i] for i in missing], transaction=False)
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return [self._plain(session, answer) for answer in answers]

    async def run_together(
        self, session: Session, calls: Sequence[Call | tuple[Any, ...]]
    ) -> list[Any]:
        """``run`` with nothing of anybody else in between."""
        answers = await self._run(session, calls, transaction=True)
        if any(isinstance(answer, NoScriptError) for answer in answers):
            await self._load(session)
            answers = await self._run(session, calls, transaction=True)
        return [self._plain(session, answer) for answer in answers]

    def translated(self, session: Session, error: BaseException) -> MatadorError:
        """What an error stands for; a session that is of no use is given up."""
        if is_gone(error) or is_moved_on(error):
            session.fail(error)
        return translate(error, self.where)

    async def _run(
        self, session: Session, calls: Sequence[Call | tuple[Any, ...]], *, transaction: bool
    ) -> list[Any]:
        pipe = session.client.pipeline(transaction=transaction)
        for call in calls:
            if isinstance(call, Call):
                sha = session.command(call.script).sha
                pipe.evalsha(sha, len(call.keys), *call.keys, *call.arguments)
            else:
                pipe.execute_command(*call)
        try:
            return await pipe.execute(raise_on_error=False)
        except Exception as error:
            raise self.translated(session, error) from error

    async def _load(self, session: Session) -> None:
        try:
            await session.load()
        except Exception as error:
            raise self.translated(session, error) from error

    def _plain(self, session: Session, answer: Any) -> Any:
        return self.translated(session, answer) if isinstance(answer, Exception) else answer

    # -- for the supervisor ------------------------------------------------------------------------

    async def _connect(self) -> Session:
        await self._drop()
        url = self._url
        options: dict[str, Any] = {"ssl": True, **tls_options(url)} if url.tls else {}
        client: Any = redis.asyncio.Redis(
            host=url.host,
            port=url.port,
            db=url.db,
            username=url.username,
            password=url.password,
            client_name=self._name,
            protocol=2,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            socket_keepalive=True,
            # Nothing is sent twice behind our back: the outcome of the first time is unknown.
            retry=Retry(NoBackoff(), 0),
            **options,
        )
        self._session = session = Session(client, self._prefix)
        try:
            await session.prepare()
        except Exception as error:
            await self._drop()
            _check_cancelled()
            raise translate(error, self.where, opening=True) from error
        _check_cancelled()
        return session

    async def _wait_lost(self, session: Session) -> BaseException:
        while True:
            await asyncio.wait([session.lost], timeout=self._heartbeat)
            if session.lost.done():
                return session.lost.result()
            try:
                await session.client.ping()
            except Exception as error:  # noqa: BLE001 - whatever it is, the session is over
                session.fail(error)
            _check_cancelled()

    async def _restore(self, session: Session) -> None:
        try:
            await self._restore_more(session)
        except BaseException:
            await self._drop()
            raise

    async def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.fail(NotConnectedError(f"disconnected from {self.where}"))
            with contextlib.suppress(Exception):
                await session.client.aclose()


def _check_cancelled() -> None:
    """Was this task cancelled? The client turns a cancellation into an answer now and then."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
