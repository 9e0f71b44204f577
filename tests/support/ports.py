"""Ports for servers that a test starts itself."""

from __future__ import annotations

import contextlib
import socket
from random import SystemRandom

# Below those that Linux gives to outgoing connections (from 32768), of which there are many: one of
# them would take the port before the server does, or while the server is restarted. Below those of
# the servers of `chaos/`, too.
_FIRST, _LAST = 10_000, 14_990

_random = SystemRandom()  # not that of a test with a seed: other processes would get the same


def free_ports(number: int = 1) -> int:
    """The first of several ports in a row that nobody uses.

    A random one, so that tests in other processes get others.
    """
    while True:
        port = _random.randrange(_FIRST, _LAST)
        try:
            with contextlib.ExitStack() as sockets:
                for one in range(port, port + number):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", one))
        except OSError:
            continue
        return port
