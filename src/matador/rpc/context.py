"""What a handler of calls gets beside the data."""

from __future__ import annotations

from matador.messages.context import Acknowledgement, Arrival, DeliveryContext
from matador.rpc.wire import CORRELATION_ID


class RpcContext(DeliveryContext):
    """What a handler knows of a call beside its data.

    Attributes:
        command: the command, in upper case.
        wants_reply: somebody waits for the result; False for a ``notify``.
        message_id: the id of the request, the same in every attempt.
        correlation_id: what the caller gave to trace it.
        queue: the full name of the queue it came from.
        headers: its headers, the caller's metadata among them.
        attempts: the number of this attempt, from 1.
        first_failure: when the first attempt failed; None in the first attempt.
        deadline: when the caller stops waiting; None: it does not say.

    Example:
        >>> @server.handler("ADD")
        ... async def add(request: Add, ctx: RpcContext) -> int:
        ...     log.info("%s from %s", ctx.command, ctx.headers.get("user"))
        ...     return request.a + request.b
    """

    __slots__ = ("command", "wants_reply")

    def __init__(
        self, arrival: Arrival, acknowledgement: Acknowledgement | None, command: str
    ) -> None:
        super().__init__(arrival, acknowledgement)
        properties = arrival.delivery.properties
        self.command = command
        self.wants_reply = properties is not None and bool(properties.reply_to)
        given = arrival.headers.get(CORRELATION_ID)
        if given is not None:
            self.correlation_id = str(given)
