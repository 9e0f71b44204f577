"""Takes jobs: the next ones of a queue, or failed ones, for a subscription."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Protocol, cast

from matador.errors import MatadorError
from matador.model.message import Delivery
from matador.transports.bullmq.jobs import Hold, Job
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.names import id_text
from matador.transports.bullmq.queues import Place
from matador.transports.bullmq.schedulers import go_on

_POLL = 0.2  # seconds between looks at the failed jobs: BullMQ wakes nobody for them
_SHORTEST = 0.001


class Source(Protocol):
    """Where the deliveries of a subscription come from."""

    async def take(self, session: Session, limit: int) -> tuple[list[Delivery], float]:
        """Up to ``limit`` deliveries; if there are none, for how many seconds to wait."""
        ...

    async def wait(self, session: Session, seconds: float) -> bool:
        """Wait for something new. Was a sign used up that others may wait for?"""
        ...

    async def wake_another(self, session: Session) -> None:
        """Make another who waits look: we do not."""
        ...


class Waiting:
    """The next jobs of a queue. Many are asked for at once; BullMQ's marker says when to ask."""

    def __init__(self, link: Link, name: str, place: Place, *, lease: float, block: float) -> None:
        self._link = link
        self._name = name
        self._place = place
        self._lock = round(lease * 1000)
        self._block = block
        self._owner = token_hex(8)
        self._number = 0
        self._together = 1

    async def take(self, session: Session, limit: int) -> tuple[list[Delivery], float]:
        """See ``Source``."""
        count = min(limit, self._together)
        scripts, now = session.scripts(self._place.queue), session.now()
        tokens = [self._token() for _ in range(count)]
        calls = [scripts.next_job(token, now, self._lock) for token in tokens]
        found: list[Delivery] = []
        scheduled: list[Job] = []
        failure: MatadorError | None = None
        wait = self._block
        for token, answer in zip(tokens, await self._link.run(session, calls), strict=True):
            if isinstance(answer, MatadorError):
                failure = answer
            elif answer[0]:
                job = Job(id_text(answer[1]), answer[0])
                found.append(job.delivery(self._name, self._place, token))
                if job.scheduler is not None:
                    scheduled.append(job)
            else:
                wait = min(wait, self._until(now, answer))
        if failure is not None and not found:
            raise failure
        # What is asked in vain costs the server as much as a job: ask for a little more than came.
        self._together = count * 2 if len(found) == count else len(found) + 1
        if scheduled:
            still = await go_on(self._link, session, self._place.queue, scheduled)
            found = [one for one in found if cast("Hold", one.receipt.handle).id not in still]
        return found, wait

    def _until(self, now: int, answer: Sequence[Any]) -> float:
        """Seconds until the rate limit ends, or until the next delayed job is due."""
        limited, due = int(answer[2]), float(answer[3])
        waits = [limited / 1000] if limited > 0 else []
        waits += [(due - now) / 1000] if due > 0 else []
        return max(_SHORTEST, min([self._block, *waits]))

    def _token(self) -> str:
        self._number += 1
        return f"{self._owner}:{self._number}"

    async def wait(self, session: Session, seconds: float) -> bool:
        """See ``Source``."""
        key = session.scripts(self._place.queue).key("marker")
        return await self._link.ask(session, "BZPOPMIN", key, round(seconds, 3)) is not None

    async def wake_another(self, session: Session) -> None:
        """See ``Source``. Does what BullMQ does when a job is there; harmless if none is."""
        key = session.scripts(self._place.queue).key("marker")
        with contextlib.suppress(MatadorError):  # others look every now and then all the same
            await self._link.ask(session, "ZADD", key, 0, "0")


class Failed:
    """Failed jobs of one kind, the oldest first."""

    def __init__(self, link: Link, name: str, place: Place, *, lease: float) -> None:
        self._link = link
        self._name = name
        self._place = place
        self._lock = round(lease * 1000)

    async def take(self, session: Session, limit: int) -> tuple[list[Delivery], float]:
        """See ``Source``."""
        return await self.hold(session, limit, ()), _POLL

    async def hold(self, session: Session, limit: int, ids: Sequence[str]) -> list[Delivery]:
        """Take these, or the oldest."""
        assert self._place.kind is not None
        token = token_hex(12)
        scripts = session.scripts(self._place.queue)
        call = scripts.take_failed(self._place.kind, token, self._lock, limit, ids)
        (rows,) = await self._link.run(session, [call])
        if isinstance(rows, MatadorError):
            raise rows
        return [
            Job(id_text(id_), flat).delivery(self._name, self._place, token) for id_, flat in rows
        ]

    async def wait(self, session: Session, seconds: float) -> bool:
        """See ``Source``."""
        await asyncio.sleep(seconds)
        return False

    async def wake_another(self, session: Session) -> None:
        """See ``Source``. Nobody waits for a sign."""
