"""What a scenario needs to know of a broker: how to reach it, how to look into it, how to hurt it.

A profile looks into the broker by its own means, not by those of the product. What it can do to
the broker beyond that is in protocols of their own; a scenario that needs one is not run where it
is missing, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from chaos.checker import Stored, Target
from chaos.proxy import Proxy

SEND_TIMEOUT = 5.0
"""Seconds after which a publish must have an outcome, where the product can be told."""


JOB = "job"
"""What stands for the subscriber of a job."""

_OF_JOB = b'{"_jobData":'


class Unplayable(Exception):
    """What a scenario needs cannot be had on this machine."""


class Profile(Protocol):
    """A broker. Made for one scenario, in a folder of its own."""

    @property
    def durable(self) -> bool:
        """Must nothing be lost?"""
        ...

    @property
    def leases(self) -> bool:
        """Does what a dead process held stay away until its lease has passed, and not come back
        at once with its connection? What it settles too late is refused then, and it is told."""
        ...

    @property
    def ordered(self) -> bool:
        """Are messages of one ordering key run in order, whatever happens?"""
        ...

    @property
    def atomic(self) -> bool:
        """Is moving a message from one queue to another a single step that no kill cuts in two?"""
        ...

    def url(self, lease: float) -> str:
        """Where the product finds it; deliveries are held for ``lease`` seconds."""
        ...

    def stored(self, queue: str) -> Sequence[Stored]:
        """What is in a queue, by its full name, whatever its state; nothing if it is not there."""
        ...

    def depth(self, queue: str) -> int:
        """How many messages are in a queue, whatever their state."""
        ...

    def damage(self) -> str | None:
        """What is broken in the broker's own storage, if anything is."""
        ...

    def close(self) -> None:
        """Give back what was taken: mounts, servers."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """The client library has buffers of its own, whatever the product asks for."""

    @property
    def buffers(self) -> int:
        """How many bytes these take for a queue, about."""
        ...


@runtime_checkable
class FillsUp(Protocol):
    """The broker can run out of room."""

    def limit_room(self, size: int) -> None:
        """Leave it ``size`` bytes in all. Before anything was stored.

        Raises:
            Unplayable: this machine does not allow it.
        """
        ...

    def make_room(self, size: int) -> None:
        """Give it ``size`` bytes in all."""
        ...


@runtime_checkable
class Restarts(Protocol):
    """The broker is a server that can end and come back."""

    def stop(self, *, kill: bool = False) -> None:
        """End it, in good order or with SIGKILL. Returns when it is gone."""
        ...

    def start(self) -> None:
        """Start it again. Returns when it answers."""
        ...


@runtime_checkable
class BehindProxy(Protocol):
    """The broker is reached by TCP, and a proxy can be put before it."""

    @property
    def proxy(self) -> Proxy:
        """The proxy; once it was asked for, ``url`` leads through it."""
        ...


@runtime_checkable
class BlocksPublishers(Protocol):
    """The broker can be made to take no more messages for want of memory."""

    @property
    def drains(self) -> bool:
        """Do workers go on meanwhile?"""
        ...

    def block(self) -> None:
        """From now on it takes none."""
        ...

    def unblock(self) -> None:
        """It takes them again."""
        ...


@runtime_checkable
class LosesQueues(Protocol):
    """A queue can go missing."""

    def drop_queue(self, queue: str) -> None:
        """Remove a queue, by its full name, behind everybody's back."""
        ...


@runtime_checkable
class RereadsQueues(LosesQueues, Protocol):
    """A queue that went missing and was made again may be read from its beginning once more.

    Its offsets begin anew, which a worker notices a little later. Until then it takes the first
    messages of the new queue for those it has handled of the old one.
    """

    @property
    def rereads_queues(self) -> bool:
        """True."""
        ...


@runtime_checkable
class SpoilsQueues(Protocol):
    """Storing in one queue can be made to fail while others take messages."""

    def spoil_queue(self, queue: str) -> None:
        """From now on nothing can be stored in a queue, by its full name."""
        ...

    def mend_queue(self, queue: str) -> None:
        """It takes messages again, once a topology was applied."""
        ...


@runtime_checkable
class RefusesDeadLetters(Protocol):
    """Storing a dead letter can be made to fail."""

    def refuse_dead_letters(self) -> None:
        """From now on no dead letter can be stored."""
        ...

    def accept_dead_letters(self) -> None:
        """They can be stored again."""
        ...


@runtime_checkable
class KeepsJobs(Protocol):
    """The broker is a provider of jobs. Failed ones are dead letters of their queue."""

    def job_queue(self, name: str) -> str:
        """The full name of a queue of jobs."""
        ...

    def completed_jobs(self, queue: str) -> set[str] | None:
        """The ids of completed jobs, of a queue by its full name; None: it keeps none."""
        ...


class _Data(msgspec.Struct):
    seq: int


class _Docket(msgspec.Struct):
    target: str = msgspec.field(name="targetSubscriber")


class _Event(msgspec.Struct):
    data: _Data


class _Body(_Event):
    docket: _Docket


class _Job(msgspec.Struct):
    data: _Data = msgspec.field(name="_jobData")


_read = msgspec.json.Decoder(_Body).decode
_read_job = msgspec.json.Decoder(_Job).decode
_read_event = msgspec.json.Decoder(_Event).decode


def target_of(body: bytes, subscriber: str | None = None) -> Target | None:
    """Whose message this is, read off its bytes; None if they do not say.

    ``subscriber``: whom its headers name; the bytes have no docket then.
    """
    try:
        if subscriber:
            return _read_event(body).data.seq, subscriber
        if body.startswith(_OF_JOB):
            return _read_job(body).data.seq, JOB
        found = _read(body)
    except msgspec.DecodeError:
        return None
    return found.data.seq, found.docket.target


def make_profile(name: str, folder: Path) -> Profile:
    """The profile of a transport.

    Raises:
        LookupError: there is none; those there are, are named.
    """
    from chaos.bullmq import BullMQProfile
    from chaos.kafka import KafkaProfile
    from chaos.rabbitmq import RabbitMQProfile
    from chaos.redis import RedisProfile
    from chaos.sqlite import SqliteProfile
    from chaos.sqs import SqsProfile

    known: dict[str, Callable[[Path], Profile]] = {
        "sqlite": SqliteProfile,
        "rabbitmq": RabbitMQProfile,
        "redis": RedisProfile,
        "bullmq": BullMQProfile,
        "sqs": SqsProfile,
        "kafka": KafkaProfile,
    }
    if name not in known:
        raise LookupError(f"no transport {name!r} here; there is {', '.join(known)}")
    return known[name](folder)
