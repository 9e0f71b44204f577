"""The application under test: one event, and subscribers that behave as they are told."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.facts import Effect, End, FactLog, Result, Start, now
from chaos.settings import AppSettings, Handler
from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    Shutdown,
    SqliteCheckpointStore,
    StandardRetryPolicy,
    Subscriber,
    SyncContext,
    Topology,
    WorkQueue,
    event,
)
from matador.testing import wait_for

NAMESPACE = "chaos"
_LOOK = 0.005  # seconds between two looks at a file
_FOR_EVER = 3600.0


@event("chaos.happened", description="Something happened, and it has a number.")
@dataclass(frozen=True, slots=True)
class Happened:
    """A message: its number, its ordering key, and filling that can be checked."""

    seq: int
    key: str | None
    filling: str

    @classmethod
    def make(cls, seq: int, key: str | None, size: int) -> Happened:
        """A message with ``size`` characters of filling."""
        return cls(seq, key, filling(seq, size))


class HandlerFailed(Exception):
    """Raised by a handler on purpose."""


def filling(seq: int, size: int) -> str:
    """Characters that only this message has."""
    pattern = f"{seq:09d}."
    return (pattern * (size // len(pattern) + 1))[:size]


def make_app(settings: AppSettings, facts: FactLog, *, consuming: bool) -> Matador:
    """The application as a publisher or a worker runs it."""
    runs = itertools.count()
    subscribers = [_subscriber(handler, facts, runs) for handler in settings.handlers]
    checkpoints = settings.checkpoints
    return Matador(
        settings.url,
        schema=Schema({Happened: subscribers}),
        topology=Topology(
            NAMESPACE,
            queues=[WorkQueue(name, concurrency=settings.concurrency) for name in settings.queues],
        ),
        consume_from=settings.queues if consuming else (),
        retry=StandardRetryPolicy(
            max_attempts=settings.max_attempts,
            base_delay=settings.base_delay,
            multiplier=1.0,
            max_deliveries=settings.max_deliveries,
        ),
        shutdown=Shutdown(settings.shutdown_timeout),
        checkpoints=None if checkpoints is None else SqliteCheckpointStore(checkpoints),
        send_errors="report",  # publishers note every outcome
    )


def _subscriber(handler: Handler, facts: FactLog, runs: Iterator[int]) -> Subscriber[Any]:
    behaviour = _Behaviour(handler, facts, runs)
    return Subscriber(
        name=handler.name,
        description="Behaves as it is told.",
        callback=behaviour.handle_in_thread if handler.blocking else behaviour.handle,
        idempotent=handler.idempotent,
        queue=handler.queue,
    )


class _Behaviour:
    def __init__(self, handler: Handler, facts: FactLog, runs: Iterator[int]) -> None:
        self._handler = handler
        self._facts = facts
        self._runs = runs

    async def handle(self, envelope: Envelope[Happened], ctx: Context) -> None:
        handler = self._handler
        finish = self._begin(envelope, ctx)
        try:
            if handler.seconds:
                await asyncio.sleep(handler.seconds)
            if handler.gate is not None:
                await wait_for(Path(handler.gate).exists, timeout=_FOR_EVER)
            for number in range(handler.steps):
                await ctx.io(f"step-{number}", self._effect(envelope, f"step-{number}"))
        except asyncio.CancelledError:
            finish("cut")
            raise
        self._conclude(envelope, finish)

    def handle_in_thread(self, envelope: Envelope[Happened], ctx: SyncContext) -> None:
        handler = self._handler
        finish = self._begin(envelope, ctx)
        time.sleep(handler.seconds)
        while handler.gate is not None and not Path(handler.gate).exists():
            time.sleep(_LOOK)
        for number in range(handler.steps):
            ctx.io(f"step-{number}", self._effect(envelope, f"step-{number}"))
        self._conclude(envelope, finish)

    def _begin(
        self, envelope: Envelope[Happened], ctx: Context | SyncContext
    ) -> Callable[[Result], None]:
        """Note the start; what is returned notes the end."""
        data, name = envelope.data, self._handler.name
        pid, run = os.getpid(), next(self._runs)
        start = Start(
            seq=data.seq,
            subscriber=name,
            id=envelope.id,
            key=data.key,
            attempt=ctx.attempt,
            redelivered=ctx.redelivered,
            intact=data.filling == filling(data.seq, len(data.filling)),
            pid=pid,
            run=run,
            at=now(),
        )
        self._facts.write(start)
        if self._handler.death == "at-start":
            self._die_if_deadly(envelope)

        def finish(result: Result) -> None:
            self._facts.write(End(data.seq, name, pid, run, result, now()))

        return finish

    def _conclude(
        self,
        envelope: Envelope[Happened],
        finish: Callable[[Result], None],
    ) -> None:
        handler = self._handler
        if handler.broken is not None and Path(handler.broken).exists():
            finish("raised")
            raise HandlerFailed("broken for now")
        if random.random() < handler.failures:
            finish("raised")
            raise HandlerFailed("bad luck")
        finish("done")
        if handler.death == "after-effect":
            self._die_if_deadly(envelope)

    def _die_if_deadly(self, envelope: Envelope[Happened]) -> None:
        """Kill the process, the first time or each time. A broker may count a delivery that no
        handler has seen, so whether it is redelivered does not tell."""
        handler, number = self._handler, envelope.data.seq
        if number not in handler.deadly:
            return
        died = self._facts.folder / f"died-{handler.name}-{number}"
        if handler.always_deadly or not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _effect(self, envelope: Envelope[Happened], step: str) -> Callable[[], str]:
        def effect() -> str:
            self._facts.write(Effect(envelope.data.seq, self._handler.name, step, os.getpid()))
            return step

        return effect
