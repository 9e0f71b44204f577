"""The client of one region: makes calls, and tracks whether the service can be reached.

HTTP has no connection to lose. The service counts as lost once a call gets no answer, and as
restored once it answers again. Until then only the supervisor calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.loaders import create_loader  # pyright: ignore[reportUnknownVariableType] - untyped

from matador.errors import NotConnectedError, TimeoutError
from matador.model.message import ConnectionState
from matador.transports.kit.backoff import Backoff
from matador.transports.sqs.errors import has_answered, is_gone, is_throttled, translate
from matador.transports.sqs.options import SqsAddress
from matador.transports.supervisor import ConnectionSupervisor

Answer: TypeAlias = dict[str, Any]

_SHORT_OUTAGE = 1.0
_THROTTLED_TRIES = 4
_CONNECTIONS = 256  # each long poll occupies one


class _Session:
    """A period during which every call gets an answer."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.lost.done():
            self.lost.set_result(error)


@cache
def _loader(path: str | None) -> Any:
    """The reader of the client library's data files. Reading them again for each connection takes
    40 ms and 8 MB."""
    return create_loader(path)


class SqsClient:
    """Calls SQS and translates its errors, which distinguish permanent from temporary failures."""

    def __init__(self, address: SqsAddress, on_state: Callable[[ConnectionState], None]) -> None:
        self.where = address.where
        self._address = address
        self._aws: Any = AioSession()
        loader = _loader(self._aws.get_config_variable("data_path"))
        self._aws.register_component("data_loader", loader)
        self._context: Any = None
        self._client: Any = None
        self._supervisor: ConnectionSupervisor[_Session] = ConnectionSupervisor(
            self._open, self._wait_lost, self._restored, backoff=address.backoff, on_state=on_state
        )

    @property
    def is_connected(self) -> bool:
        """Whether the last call was answered."""
        return self._supervisor.state.status == "connected"

    async def start(self) -> None:
        """Connect, and track from then on whether the service can be reached."""
        try:
            await self._supervisor.start()
        except BaseException:
            await self._drop_client()
            raise

    async def stop(self) -> None:
        """Disconnect."""
        await self._supervisor.stop()
        await self._drop_client()

    async def wait_connected(self) -> None:
        """Wait until the service can be reached.

        Raises:
            NotConnectedError: disconnected.
        """
        await self._supervisor.wait_connected()

    async def require(self) -> _Session:
        """The session; waits up to a second if the service cannot be reached now.

        Raises:
            NotConnectedError: not connected.
        """
        try:
            return self._supervisor.connection
        except NotConnectedError:
            state = self._supervisor.state
            if state.status != "reconnecting":
                raise state.refusal(f"not connected to {self.where}") from state.error
        try:
            return await self._supervisor.wait_connected(_SHORT_OUTAGE)
        except TimeoutError:
            raise NotConnectedError(
                f"{self.where} cannot be reached; trying again"
            ) from self._supervisor.state.error

    async def call(self, operation: str, *, queue: str = "", **parameters: Any) -> Answer:
        """Make a call, named as in botocore (``send_message_batch``). Repeats a throttled call.

        Raises:
            NotConnectedError: not connected; the call was not made.
            SendFailedError: throttled or not answered; the call may succeed later.
            MatadorError: a permanent failure.
        """
        backoff = Backoff(0.1, 2.0)
        for last in (*[False] * (_THROTTLED_TRIES - 1), True):
            session = await self.require()
            try:
                return await getattr(session.client, operation)(**parameters)
            except Exception as error:
                if is_throttled(error) and not last:
                    await backoff.sleep()
                    continue
                if is_gone(error):
                    session.fail(error)
                raise translate(error, self.where, queue=queue) from error
        raise AssertionError("unreachable")

    async def _make_client(self) -> None:
        address = self._address
        plain = (address.endpoint or "").startswith("http://")
        config = AioConfig(
            connect_timeout=address.timeout,
            read_timeout=address.wait + address.timeout,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1},  # a repeated send could store a message twice
        )
        try:
            self._context = self._aws.create_client(
                "sqs",
                region_name=address.region,
                endpoint_url=address.endpoint,
                config=config,
                # Without TLS, do not load certificates: it takes longer than all the rest.
                verify=False if plain else None,
            )
            self._client = await self._context.__aenter__()
        except Exception as error:
            self._context = None
            raise translate(error, self.where, opening=True) from error

    async def _drop_client(self) -> None:
        context, self._context, self._client = self._context, None, None
        if context is not None:
            await context.__aexit__(None, None, None)

    # -- for the supervisor ------------------------------------------------------------------------

    async def _open(self) -> _Session:
        await self._drop_client()  # drop its connections, which may be dead
        await self._make_client()
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._client.list_queues(MaxResults=1)
        except Exception as error:
            if not has_answered(error):  # a caller that may not list queues may still use them
                raise translate(error, self.where, opening=True) from error
        return _Session(self._client)

    async def _wait_lost(self, session: _Session) -> BaseException:
        return await asyncio.shield(session.lost)

    async def _restored(self, session: _Session) -> None:
        """Nothing to restore: queues are found again by name."""
