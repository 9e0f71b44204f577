"""A publisher process: ``python -m chaos.publisher SETTINGS``.

Notes its intent before each publish and what came of it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from chaos.application import Happened, make_app
from chaos.clocks import move_clock
from chaos.facts import Fact, FactLog, Intent, Ready, Refused, Sent, now
from chaos.settings import PublisherSettings, Publishing
from matador import Matador, SendOptions, SendResult
from matador.errors import (
    MatadorError,
    MessageTooLargeError,
    QueueNotFoundError,
    SendRefusedError,
    StorageFullError,
)
from matador.testing import wait_for

_FOR_EVER = 3600.0

_NOT_STORED = (MessageTooLargeError, QueueNotFoundError, SendRefusedError, StorageFullError)
"""After these nothing was stored; after any other error something may have been."""


async def publish(app: Matador, facts: FactLog, publishing: Publishing) -> None:
    """Publish everything, by as many callers as there are to be."""
    if publishing.gate is not None:
        await wait_for(Path(publishing.gate).exists, timeout=_FOR_EVER)
    numbers = range(publishing.first, publishing.first + publishing.count)
    callers = [iter(numbers[start :: publishing.callers]) for start in range(publishing.callers)]
    await asyncio.gather(*[_call(app, facts, publishing, caller) for caller in callers])


async def _call(
    app: Matador, facts: FactLog, publishing: Publishing, numbers: Iterator[int]
) -> None:
    end = None if publishing.end is None else Path(publishing.end)
    while batch := list(islice(numbers, publishing.together)):
        if end is not None and end.exists():
            break
        events = [_event(seq, publishing) for seq in batch]
        facts.write(*[Intent(event.seq, event.key, now()) for event, _ in events])
        results = await app.send_many(events)
        for (event, _), result in zip(events, results, strict=True):
            facts.write(*_outcomes(event.seq, result))
        if not all(result.ok for result in results):
            await asyncio.sleep(publishing.patience)


def _event(seq: int, publishing: Publishing) -> tuple[Happened, SendOptions]:
    key = f"{publishing.lane}-{seq % publishing.keys}" if publishing.keys else None
    options = SendOptions(delay=publishing.delay, ordering_key=key)
    return Happened.make(seq, key, publishing.size), options


def _outcomes(seq: int, result: SendResult) -> list[Fact]:
    at = now()
    facts: list[Fact] = [Sent(seq, one.subscriber, one.id, at) for one in result.messages]
    for error in result.errors:
        cause = error.__cause__ if isinstance(error.__cause__, MatadorError) else error
        facts.append(
            Refused(
                seq,
                error.subscriber or "",
                cause.name,
                str(cause),
                isinstance(cause, _NOT_STORED),
                at,
            )
        )
    return facts


async def main(argument: str) -> None:
    """Publish, then end."""
    settings = msgspec.json.decode(argument, type=PublisherSettings)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    move_clock(settings.moved_clock)
    facts = FactLog(Path(settings.facts))
    async with make_app(settings.app, facts, consuming=False) as app:
        facts.write(Ready(os.getpid()))
        await publish(app, facts, settings.publishing)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
