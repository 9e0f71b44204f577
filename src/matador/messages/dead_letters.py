"""Processes the dead letters of a subscriber or a server with a function of the user's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from matador.errors import DontRetry
from matador.messages.context import Acknowledgement, Arrival
from matador.messages.counters import MessageCounters
from matador.messages.functions import MessageFunction
from matador.messages.handler import HandlingOptions, MessageHandler, decoded
from matador.policy.ack import AckStrategy
from matador.runtime.worker import DeliveryWorker
from matador.transports.clock import Clock

log = logging.getLogger("matador.messages")

ATTEMPTS = 3
"""How often a dead letter is given to the function."""

_PAUSE = 0.5  # seconds after the first failure; twice as long after the second
_OPTIONS = HandlingOptions(ack=AckStrategy(max_retries=1), dead_letters=False)


class DeadLetterProcessor(MessageHandler):
    """Gives each dead letter to a function, malformed ones included, and deletes it.

    One that the function fails on is tried again, three times in all, and then deleted with an
    error in the log. It stays in the queue meanwhile, so a crash loses nothing.
    """

    minds_deadlines = False

    def __init__(
        self,
        worker: DeliveryWorker,
        function: MessageFunction,
        *,
        arrived: Callable[[Arrival], Any],
        counters: MessageCounters,
        clock: Clock | None = None,
    ) -> None:
        """``arrived``: what the parameters of the function are filled from."""
        super().__init__(worker, _OPTIONS, counters=counters, clock=clock)
        self._function = function
        self._arrived = arrived

    def problem_of(self, arrival: Arrival) -> str | None:
        """See ``MessageHandler``. Dead letters may be of any kind."""
        return None

    async def run(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> bytes | None:
        """See ``MessageHandler``."""
        attempt = 1
        while True:
            # Anew each time: the function may have changed the data.
            data = decoded(self._function, arrival.body)
            counted = msgspec.structs.replace(arrival, attempt=attempt)
            try:
                await self.call(self._function, self._arrived(counted), data)
            except Exception as error:
                if attempt >= ATTEMPTS or isinstance(error, DontRetry):
                    raise
                queue = arrival.delivery.receipt.queue
                log.warning("processing a dead letter of %s failed; trying again: %s", queue, error)
            else:
                return None
            await asyncio.sleep(_PAUSE * attempt)
            attempt += 1


def processor_of(read: MessageFunction) -> MessageFunction:
    """A function for dead letters, which may be of any kind.

    Without a type, its data is what the body has as JSON, or the bytes of a body that has none.
    """
    if read.takes is bytes:
        return replace(read, decode=bytes)
    return replace(read, decode=_json_or_bytes) if read.takes is Any else read


def _json_or_bytes(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return body
