"""Ships a journal in a separate process beside an application.

The client library of the store blocks all threads of its process while it waits for an answer,
which must not block the application. The process receives its order over standard input, where
other users of the machine cannot see the credentials. When the input closes because the application
has stopped or died, the process ships the last segments and ends. Of several processes for one
folder, one ships; the others wait and need almost no memory.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from matador.errors import StorageLockedError
from matador.observe.journal.ship import Shipper
from matador.storage import open_storage
from matador.storage.options import impatient

log = logging.getLogger("matador.journal")

_LOOK_EVERY = 2.0  # seconds
_SAY_EVERY = 30.0  # seconds between log lines about a store that cannot be reached
_START_AGAIN = 30.0  # seconds after which a process that has ended is started again
_LAST_TRY = 10.0  # seconds that the end of a journal waits for its last segments


class ShipOrder(msgspec.Struct, frozen=True):
    """The order for a process. It contains secrets, so it is neither printed nor passed as an
    argument."""

    folder: str
    target: str
    options: dict[str, str]
    delete: bool

    def __repr__(self) -> str:
        return f"ShipOrder({self.folder!r}, {self.target!r})"


class ShippingProcess:
    """Starts the process, and restarts it if it ends unexpectedly. The application only waits for
    it for some seconds at shutdown; the next start, or ``matador journal ship``, ships the
    remaining segments."""

    def __init__(
        self, folder: Path, target: str, options: Mapping[str, Any] | None, *, delete: bool
    ) -> None:
        storage = open_storage(target, "Journal: ship_to", options)  # raises if it is invalid
        given = {name: str(value) for name, value in (options or {}).items()}
        self._order = ShipOrder(str(folder.absolute()), storage.root, given, delete)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and a thread that supervises it."""
        self._stopping = threading.Event()
        self._start()
        self._thread = threading.Thread(
            target=self._watch, args=(self._stopping,), name="matador-ship", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Let the process ship the remaining segments and end; wait with a short limit."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        self._end_input()
        thread.join(_LAST_TRY)
        if thread.is_alive():
            log.warning("the last segments are not shipped to %s yet", self._order.target)

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "matador.observe.journal.ship_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # the application handles Ctrl-C
            )
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            log.error("segments are not shipped to %s: %s", self._order.target, error)

    def _watch(self, stopping: threading.Event) -> None:
        while True:
            process = self._process
            code = None if process is None else process.wait()
            self._end_input()
            if stopping.is_set():
                return
            log.error(
                "the process that ships segments to %s has ended (%s); it is started again",
                self._order.target,
                code,
            )
            if stopping.wait(_START_AGAIN):
                return
            self._start()
            if stopping.is_set():  # ``stop`` has closed the input of the previous process
                self._end_input()

    def _end_input(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


# -- the process ----------------------------------------------------------------------------------


def main() -> None:
    """Ship the journal of the order until the input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ShipOrder)
    target = open_storage(order.target, "Journal: ship_to", impatient(order.target, order.options))
    shipper = Shipper(Path(order.folder), target, delete=order.delete)
    said = 0.0
    while True:
        is_last = bool(select.select([sys.stdin], [], [], _LOOK_EVERY)[0])
        try:
            shipper.run()
        except StorageLockedError:
            pass  # another process ships this folder
        except Exception as error:  # noqa: BLE001 - the next round retries
            if is_last or time.monotonic() - said > _SAY_EVERY or not said:
                said = time.monotonic()
                log.error("segments wait to be shipped to %s: %s", target.root, error)
        if is_last:
            return


if __name__ == "__main__":
    main()
