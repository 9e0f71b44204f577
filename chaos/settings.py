"""What the processes of a run are told: plain values, handed over on the command line."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from matador.model.subscriber import Idempotency

Death: TypeAlias = Literal["at-start", "after-effect"]
"""When a deadly message kills its process: before anything was done, or just before the end."""


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """How one subscriber behaves.

    Attributes:
        seconds: how long it takes.
        blocking: it is a sync function, so it runs in a thread.
        gate: it waits until this file is there.
        failures: the share of runs that raise, at random.
        broken: it raises while this file is there.
        deadly: messages that kill the process, by their number.
        death: when they do.
        always_deadly: every time, not only the first.
        steps: how many remembered steps it has (``ctx.io``).
    """

    name: str = "handle"
    queue: str = "events"
    idempotent: Idempotency = "yes"
    seconds: float = 0.0
    blocking: bool = False
    gate: str | None = None
    failures: float = 0.0
    broken: str | None = None
    deadly: tuple[int, ...] = ()
    death: Death = "at-start"
    always_deadly: bool = False
    steps: int = 0


class AppSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The application that publishers and workers share."""

    url: str
    handlers: tuple[Handler, ...] = (Handler(),)
    concurrency: int = 10
    max_attempts: int = 3
    base_delay: float = 0.05
    max_deliveries: int = 5
    shutdown_timeout: float = 30.0
    checkpoints: str | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of its handlers, each once."""
        return tuple(dict.fromkeys(handler.queue for handler in self.handlers))


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told."""

    app: AppSettings
    facts: str
    moved_clock: float = 0.0


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """What to publish.

    Attributes:
        first, count: the numbers of the messages.
        keys: how many ordering keys; 0: none. A multiple of ``callers``, so that the messages of
            one key have one sender.
        lane: part of every key; publishers side by side have different ones.
        together: how many go in one call.
        callers: how many calls at once.
        size: bytes of filling in each.
        delay: seconds until each may be handled.
        patience: seconds to wait after a refusal.
        gate: it is connected, but waits until this file is there.
        end: it stops when this file is there, whatever is left.
    """

    first: int = 0
    count: int = 1
    keys: int = 0
    lane: str = "a"
    together: int = 1
    callers: int = 1
    size: int = 0
    delay: float | None = None
    patience: float = 0.0
    gate: str | None = None
    end: str | None = None


class PublisherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher is told."""

    app: AppSettings
    facts: str
    publishing: Publishing
    moved_clock: float = 0.0


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told that adds jobs, or works on them.

    Attributes:
        add: how many jobs to add; 0: it is a worker.
        seconds: how long a job takes.
        flaky: every so many jobs, one fails in its first attempt.
        doomed: every so many jobs, one fails for good.
    """

    url: str
    facts: str
    queue: str
    add: int = 0
    concurrency: int = 10
    seconds: float = 0.02
    flaky: int = 10
    doomed: int = 50
