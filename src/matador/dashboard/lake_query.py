"""One query over the lake: the first rows of its answer, and a way to stop it from outside."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matador.errors import ConfigurationError

if TYPE_CHECKING:
    from matador.spark import Lake

log = logging.getLogger("matador.dashboard")

MOST_ROWS = 200
_AGAIN = 0.2  # seconds: Spark forgets an interrupt that comes between two jobs of a query


@dataclass(frozen=True, slots=True)
class Answer:
    """The first rows that a query has found."""

    columns: list[str]
    rows: list[list[str]]
    more: bool
    seconds: float


class LakeQuery:
    """A query that is run in one thread, and may be stopped in another."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tag = f"matador-query-{secrets.token_hex(8)}"
        self._lake: Lake | None = None
        self._stopped = threading.Event()
        self._done = threading.Event()

    @property
    def has_begun(self) -> bool:
        """Is Spark at work on it, or has it been?"""
        return self._lake is not None

    def run(self, lake: Lake) -> Answer:
        """Ask the lake.

        Raises:
            ConfigurationError: the query is not one SELECT, or it was stopped.
            Exception: whatever Spark raises, also because it was stopped.
        """
        from matador.spark.runtime.messages import first_rows
        from matador.spark.runtime.tags import tagged

        self._lake = lake
        began = time.monotonic()
        try:
            if self._stopped.is_set():
                raise ConfigurationError("the query was stopped")
            with tagged(lake.spark, self._tag):
                found = first_rows(lake.sql(self._sql), MOST_ROWS)
        finally:
            self._done.set()
        shown = [["" if one is None else str(one) for one in row.values()] for row in found.rows]
        return Answer(found.columns, shown, found.more, time.monotonic() - began)

    def stop(self) -> None:
        """Stop it, or keep it from beginning. Returns at once; call it once, from any thread."""
        self._stopped.set()  # before the look at _lake, which run() sets before it looks here
        if self._lake is not None:
            name = "matador-lake-interrupt"
            threading.Thread(
                target=self._interrupt, args=[self._lake], name=name, daemon=True
            ).start()

    def _interrupt(self, lake: Lake) -> None:
        from matador.spark.runtime.tags import interrupt

        try:
            while not self._done.wait(_AGAIN):
                interrupt(lake.spark, self._tag)
        except Exception as error:  # noqa: BLE001 - a session that has ended runs no query either
            if not self._done.is_set():
                log.warning("a query over the lake could not be stopped: %s", error)
