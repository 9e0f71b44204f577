"""Ports for servers that a test starts itself."""

from __future__ import annotations

import contextlib
import socket


def free_ports(number: int = 1) -> int:
    """The first of several ports in a row that nobody uses.

    The system chooses it, so that tests in other processes get others.
    """
    while True:
        with contextlib.ExitStack() as sockets:
            first = sockets.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for other in range(port + 1, port + number):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", other))
            except (OSError, OverflowError):
                continue
            return port
