"""Waits for stores that messages depend on: those of steps and of duplicates.

A store that is unavailable never costs a message an attempt. Calls are repeated. Before the handler
starts, they give up after a while with ``StoreUnavailableError``, and the message goes back to its
queue, uncounted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from matador.errors import StoreUnavailableError
from matador.model.text import SHORT_TEXT, error_text
from matador.transports.kit.backoff import Backoff

log = logging.getLogger("matador.worker")

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


async def patiently(
    call: Callable[[], Awaitable[T]],
    what: str,
    limit: float | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    permanent: tuple[type[Exception], ...] = (),
) -> T:
    """Call a store until it answers.

    Args:
        call: calls the store.
        what: the store and the operation, for the log.
        limit: seconds after which to give up. None: never.
        sleep: sleeps for some seconds.
        permanent: errors that are raised at once, because the same call would fail again.

    Raises:
        StoreUnavailableError: the limit passed.
    """
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    began: float | None = None
    while True:
        try:
            return await call()
        except permanent:
            raise
        except Exception as error:  # no error of a store is caused by the message
            now = time.monotonic()
            if began is None:
                began = now
                log.warning("%s: %s; waiting for it", what, error_text(error, SHORT_TEXT))
            elif limit is not None and now - began >= limit:
                raise StoreUnavailableError(
                    f"{what}: {error_text(error, SHORT_TEXT)}, for {now - began:.0f} s"
                ) from error
        await sleep(pauses.next())
