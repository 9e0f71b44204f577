"""Makes Ctrl-C end the ``matador`` command quietly while it is still being imported.

The package imports this module first: nothing else can catch an interrupt during the other imports.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def _is_command() -> bool:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 - pathlib is slow
    return program == "matador" or (program == "-m" and "matador" in sys.orig_argv)


def _exit(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def imports_done() -> None:
    """From now on Ctrl-C raises ``KeyboardInterrupt`` again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Ctrl-C stays ignored where it is, as in the background job of a shell.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _exit)
