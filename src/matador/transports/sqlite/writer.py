"""The one thread that writes: whatever is pending becomes one transaction, with one fsync."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from matador.errors import MatadorError, StorageLockedError
from matador.transports.sqlite.errors import is_whole, translate
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.sweep import Maintenance

logger = logging.getLogger("matador.transports.sqlite")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Work: TypeAlias = Callable[[WriterSession, Sequence[Item]], Sequence[Outcome]]


@dataclass(slots=True, eq=False)
class _Batch:
    """Items for the writer; each has its own outcome."""

    work: Work[Any, Any]
    items: Sequence[Any]
    future: asyncio.Future[Sequence[Any]]
    outcomes: Sequence[Any] = ()


class Writer:
    """Runs batches in its own thread, in order, many in one transaction.

    If a batch fails, the transaction is rolled back, and every item of the group is tried again in
    a transaction of its own. The methods belong to the event loop.
    """

    def __init__(self, open_session: Callable[[], WriterSession], name: str) -> None:
        self._open_session: Callable[[], WriterSession] | None = open_session
        self._loop = asyncio.get_running_loop()
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.at_work = threading.Lock()  # held while the thread uses SQLite
        _writers.add(self)

    async def start(self) -> None:
        """Open the database.

        Raises:
            BaseException: whatever ``open_session`` raises; the thread has then ended.
        """
        self._thread.start()
        await asyncio.shield(self._opened)

    def abandon(self) -> None:
        """Let the thread end, whether or not the database is open, without waiting for it."""
        self._batches.put(None)

    def submit(
        self, work: Work[Item, Outcome], items: Sequence[Item]
    ) -> asyncio.Future[Sequence[Outcome | MatadorError]]:
        """Put a batch in the next transaction. The future never has an exception: the outcome of an
        item that fails is its error. Cancelling the future undoes nothing."""
        future: asyncio.Future[Sequence[Outcome | MatadorError]] = self._loop.create_future()
        self._batches.put(_Batch(work, items, future))
        return future

    async def stop(self) -> None:
        """Finish what has been submitted, then close the database."""
        self._batches.put(None)
        await asyncio.shield(self._ended)

    # -- the writer's thread -----------------------------------------------------------------

    def _run(self) -> None:
        open_session, self._open_session = self._open_session, None
        assert open_session is not None
        try:
            with self.at_work:
                session = open_session()
            del open_session  # it knows the connection, which ends this thread when it is collected
        except BaseException as error:  # noqa: BLE001 - raised again by start()
            self._call_on_loop(_finish, self._opened, error)
            return
        self._call_on_loop(_finish, self._opened)
        maintenance = Maintenance()
        stopping = False
        while not stopping:
            batches, stopping = self._pending(maintenance.seconds_to_wait(session))
            if batches:
                with self.at_work:
                    _run_batches(session, batches)
                self._call_on_loop(_resolve, batches)
                maintenance.note_work()
            if not stopping:
                with self.at_work:
                    _maintain(maintenance, session)
        with self.at_work, _logged(session, "could not close the file cleanly"):
            session.close()
        self._call_on_loop(_finish, self._ended)

    def _pending(self, seconds_to_wait: float) -> tuple[list[_Batch], bool]:
        batches: list[_Batch] = []
        try:
            batch = self._batches.get(timeout=seconds_to_wait)
            while batch is not None:
                batches.append(batch)
                batch = self._batches.get_nowait()
        except queue.Empty:
            return batches, False
        return batches, True

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop was closed without a disconnect: no task waits for the outcome.
            logger.debug("the event loop is closed", exc_info=True)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
_paused: list[Writer] = []
_LONGEST_PAUSE = 5.0  # seconds


def _pause_all() -> None:
    """Before a fork: let transactions end. SQLite would never give up their locks in the child."""
    _paused[:] = [one for one in list(_writers) if one.at_work.acquire(timeout=_LONGEST_PAUSE)]


def _resume_all() -> None:
    for one in _paused:
        one.at_work.release()
    _paused.clear()


os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_resume_all)


def _run_batches(session: WriterSession, batches: Sequence[_Batch]) -> None:
    error = _run_in_one_transaction(session, batches)
    if error is None:
        return
    failure = translate(error, session.path) if is_whole(error) else None
    for batch in batches:
        outcomes: list[Any] = []
        for item in batch.items:  # each in a transaction of its own, unless that is futile
            outcome = failure
            if failure is None:
                alone = _Batch(batch.work, [item], batch.future)
                error = _run_in_one_transaction(session, [alone])
                if error is None:
                    (outcome,) = alone.outcomes
                else:
                    outcome = translate(error, session.path)
                    failure = outcome if is_whole(error) else None
            outcomes.append(outcome)
        batch.outcomes = outcomes


def _run_in_one_transaction(session: WriterSession, batches: Sequence[_Batch]) -> Exception | None:
    """Do batches in one transaction. Returns why it was rolled back, or None."""
    try:
        session.begin()
        for batch in batches:
            batch.outcomes = batch.work(session, batch.items)
        session.commit()
    except Exception as error:  # noqa: BLE001 - becomes the outcome of the items concerned
        with _logged(session, "could not roll back a failed transaction"):
            # Else SQLite does it before the next transaction, or when the file is next opened.
            session.rollback()
        return error
    return None


@contextmanager
def _logged(session: WriterSession, failure: str) -> Generator[None]:
    try:
        yield
    except Exception:
        logger.warning("%s: %s", session.path, failure, exc_info=True)


def _maintain(maintenance: Maintenance, session: WriterSession) -> None:
    try:
        maintenance.run_if_due(session)
    except Exception as error:  # noqa: BLE001 - the writer and the maintenance go on
        # It is normal that other processes are busy.
        busy = isinstance(translate(error, session.path), StorageLockedError)
        level = logging.DEBUG if busy else logging.WARNING
        logger.log(level, "%s: clean-up failed and will be tried again: %s", session.path, error)


# -- on the event loop ------------------------------------------------------------------------


def _finish(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _resolve(batches: Sequence[_Batch]) -> None:
    for batch in batches:
        if not batch.future.done():
            batch.future.set_result(batch.outcomes)
