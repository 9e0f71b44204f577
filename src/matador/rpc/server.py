"""``RpcServer``: handles the commands that clients call."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, TypeVar, Unpack

from matador.errors import LifecycleError, UnsupportedError
from matador.model.arguments import check_arguments
from matador.model.message import Delivery
from matador.model.options import Seconds, optional_seconds, optional_whole_number
from matador.model.topology import Topology, WorkQueue
from matador.policy.ack import DeadLetterOptions
from matador.policy.retry import may_run_again
from matador.policy.validation import Validation
from matador.rpc.way import RpcContext, RpcWay, command_of, kept_properties
from matador.rpc.wire import command_name
from matador.runtime.facts import Way
from matador.runtime.functions import MessageFunction, read_function
from matador.runtime.message_service import (
    HandlerOptions,
    MessageReceiver,
    ReceiverOptions,
    work_queue,
)
from matador.runtime.messages import MessageReader, MessageRoute, MessageWork
from matador.transports.base import Choosing, Transport

log = logging.getLogger("matador.rpc")

F = TypeVar("F", bound=Callable[..., Any])

_CONCURRENCY = 100

_NOT_IN_A_NAMESPACE = re.compile(r"[^A-Za-z0-9_-]")


class RpcServer(MessageReceiver):
    """Handles commands that arrive in a queue. Several servers may share one.

    A failed call is answered with an error at once, and not retried unless the handler raises
    ``DoRetry``. Without a waiting caller (``notify``), the retry policy decides. Requests whose
    caller has stopped waiting are not run.

    Args:
        url: the URL of the broker, or a transport. A transport object is connected, but never
            disconnected.
        queue: the name of the queue, as it is on the broker, or a ``WorkQueue`` with its options.
        concurrency: how many requests are handled at once. None: the concurrency of the queue, or
            100.
        dead_letters: whether and how failed requests are kept, in ``{queue}.dlq``. Kept by default.
            A request is not kept if its caller received a deliberate error: a ``RemoteError``, or
            the error for an unknown command or invalid data. Existing queues keep their arguments.
        slow_call: seconds after which a call is logged as slow; None: never.
        hide_errors: callers only receive the names of unexpected exceptions, not their texts. Raise
            a ``RemoteError`` to send a text.
        create: False: on RabbitMQ, the queue must exist; it is used unchanged.
        **options: see ``ReceiverOptions``.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> server = RpcServer("amqp://localhost", queue="maths", concurrency=100)
        >>> @server.handler("ADD")
        ... async def add(request: Add, ctx: RpcContext) -> int:
        ...     return request.a + request.b
        >>> server.run()  # until SIGTERM; in a program of yours: async with server
    """

    _way: ClassVar[Way] = "rpc"

    def __init__(
        self,
        url: str | Transport,
        *,
        queue: str | WorkQueue,
        concurrency: int | None = None,
        dead_letters: DeadLetterOptions | bool | None = None,
        slow_call: Seconds | None = None,
        hide_errors: bool = False,
        create: bool = True,
        **options: Unpack[ReceiverOptions],
    ) -> None:
        optional_whole_number(concurrency, "RpcServer: concurrency", minimum=1)
        work = work_queue(queue, "RpcServer", create=create, concurrency=concurrency)
        self._queue = work.name
        where = f"RpcServer({self._queue!r})"
        self._concurrency = work.concurrency or _CONCURRENCY
        check_arguments(where, validation=options.get("validation"))
        validation = options.get("validation") or Validation()
        if validation.null is None:
            options["validation"] = replace(validation, null=True)
        letters = DeadLetterOptions.of(dead_letters)
        options.setdefault("timeout", work.consumer_timeout)
        super().__init__(where, url, letters=letters, context=RpcContext, **options)
        work = work.named(create=create, concurrency=self._concurrency)
        self._topology = Topology(_namespace(work.name), queues=[work], dead_letters=self._kept())
        self._slow_call = optional_seconds(slow_call, f"{where}: slow_call")
        self._hide_errors = hide_errors
        self._commands: dict[str, MessageRoute] = {}

    def __repr__(self) -> str:
        return f"{self._where[:-1]}, {', '.join(self.commands) or 'no commands'})"

    # -- commands ---------------------------------------------------------------------------------

    def handler(self, command: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Register a function for a command; see ``register``.

        Example:
            >>> @server.handler("ADD")
            ... async def add(request: Add) -> int:
            ...     return request.a + request.b
        """

        def registered(function: F) -> F:
            self.register(command, function, **options)
            return function

        return registered

    def register(
        self, command: str, function: Callable[..., Any], **options: Unpack[HandlerOptions]
    ) -> None:
        """Handle a command with a function, sync or async, now or while the server runs.

        Its parameters are filled by their types: an ``RpcContext`` gets the context, the other one
        gets the data of the request in its type. What it returns is the reply. A function that was
        registered for the command before is replaced. ``options``: see ``HandlerOptions``.

        Raises:
            ConfigurationError: the command is empty, or the function has an unsuitable signature.

        Example:
            >>> server.register("ADD", add, timeout=5)
        """
        name = command_name(command, self._where)
        read = read_function(function, f"{self._where}: {name}", context=RpcContext)
        route = self._route(read, options)
        if name in self._commands:
            log.info("%s: the handler of %s is replaced", self._where, name)
        self._commands[name] = route

    def unregister(self, command: str) -> bool:
        """Remove the handler of a command; return whether there was one.

        Example:
            >>> server.unregister("ADD")
            True
        """
        return self._commands.pop(command_name(command, self._where), None) is not None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that it handles."""
        return tuple(sorted(self._commands))

    @property
    def functions(self) -> Mapping[str, MessageFunction]:
        """The functions that handle them, by command."""
        return {name: route.function for name, route in sorted(self._commands.items())}

    # -- life -------------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._commands:
            raise LifecycleError(
                f"{self._where} has no handlers; register one with @server.handler(…) first"
            )

    async def _open(self, transport: Transport) -> None:
        if isinstance(transport, Choosing):
            raise UnsupportedError(
                f"{self._where}: the group {transport.name!r} would send replies over its first "
                f"transport, and not over that of the request; start a server for each transport"
            )
        await self._broker.apply(self._topology)
        outbox = self._open_outbox(transport, recovery=self._recovery)
        await self._receive(
            transport,
            lambda options, _: RpcWay(
                options,
                self._commands,
                outbox,
                hide_errors=self._hide_errors,
                slow_call=self._slow_call,
            ),
            {self._queue: self._concurrency},
            read_ahead=lambda _: all(
                may_run_again(one.idempotent) for one in self._commands.values()
            ),
        )

    @property
    def topology(self) -> Topology:
        """The queue that it creates."""
        return self._topology

    @property
    def reader(self) -> MessageReader:
        """The reader of the requests stored in its queue."""
        return MessageReader(
            self._validation,
            name_of=command_of,
            routes_of=self._routes_of,
            kept_properties=kept_properties,
        )

    def _routes_of(self, delivery: Delivery, queue: str) -> Sequence[MessageRoute]:
        found = self._commands.get(command_of(delivery))
        return () if found is None else (found,)

    def _letter_arguments(self, work: MessageWork) -> RpcContext:
        return RpcContext(work, None)

    # -- state -----------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return self._activity.processing


def _namespace(queue: str) -> str:
    """A separate namespace for each queue, because a shared transport stores topologies by
    namespace."""
    plain = _NOT_IN_A_NAMESPACE.sub("-", queue)[:40]
    digest = (
        "" if plain == queue else f"-{sha256(queue.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )
    return f"rpc-{plain}{digest}"
