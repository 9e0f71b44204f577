"""Brings back what vanished workers held: BullMQ's check for stalled jobs, for one queue."""

from __future__ import annotations

import asyncio
import logging

from matador.errors import MatadorError, NotConnectedError
from matador.transports.bullmq.link import Link

log = logging.getLogger("matador.transports.bullmq")


class StalledCheck:
    """Looks twice in every lease, from the first subscription until the transport disconnects.

    All workers of a queue share the work: who looks first is the only one until the next time.
    """

    def __init__(self, link: Link, queue: str, lease: float) -> None:
        self._link = link
        self._queue = queue
        self._period = lease / 2
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._ending.done():
            try:
                session = await self._link.session()
                # A little shorter than our period, so that our own next look is not refused.
                interval = round(self._period * 900)
                call = session.scripts(self._queue).recover(session.now(), interval)
                (answer,) = await self._link.run(session, [call])
                if isinstance(answer, MatadorError):
                    raise answer
                if answer:
                    log.warning(
                        "%s: %d jobs of workers that vanished are delivered again",
                        self._queue,
                        len(answer),
                    )
            except NotConnectedError:
                pass  # the supervisor is at it
            except MatadorError as error:
                log.warning("%s: cannot look for stalled jobs: %s", self._queue, error)
            await asyncio.wait([self._ending], timeout=self._period)

    async def close(self) -> None:
        """Stop looking, when the present look is over: the client loses cancellations."""
        self._ending.set_result(None)
        await self._task
