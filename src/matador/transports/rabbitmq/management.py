"""Asks the management plugin for what AMQP does not tell, if that is allowed.

Everything works without it. Its numbers are up to five seconds old, because the server collects
them that often: what AMQP knows is taken from AMQP.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar
from urllib.parse import quote

import msgspec

from matador.transports.kit.options import tls_context
from matador.transports.rabbitmq.options import RabbitMQAddress

log = logging.getLogger("matador.rabbitmq")

Answer = TypeVar("Answer")

_REALM = "RabbitMQ Management"
_PORT_OFFSET = 10_000  # 15672 belongs to 5672, 15671 to 5671
_HIGHEST_PORT = 65_535
_TIMEOUT = 2.0  # seconds
_LEFT_ALONE = 10.0  # seconds
_LARGEST = 1024 * 1024  # bytes of a response


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    name: str
    running: bool = True
    mem_alarm: bool = False
    disk_free_alarm: bool = False
    partitions: tuple[str, ...] = ()


class Management:
    """The HTTP API of a server. If it does not answer, it is left alone for a while.

    Whoever listens there gets the password. So unless ``management=`` names the address, or says
    that it is on the server's own host, it is only asked over TLS with a verified certificate.
    """

    def __init__(self, address: RabbitMQAddress, host: str, port: int) -> None:
        self._base = _base(address, host, port)
        self._silent_until = 0.0
        self._address = address
        self._opener: urllib.request.OpenerDirector | None = None

    @property
    def is_asked(self) -> bool:
        """Whether it may be asked at all."""
        return self._base is not None

    async def unacknowledged(self, queue: str) -> int | None:
        """How many messages of a queue are in flight; None: no answer, or not counted yet."""
        path = f"queues/{quote(self._address.vhost, safe='')}/{quote(queue, safe='')}"
        column = "messages_unacknowledged"
        answer = await self._ask(f"{path}?columns={column}", dict[str, int | None])
        return None if answer is None else answer.get(column)

    async def nodes(self) -> list[Node] | None:
        """The nodes of the cluster; None: no answer."""
        columns = ",".join(Node.__struct_fields__)
        return await self._ask(f"nodes?columns={columns}", list[Node])

    async def _ask(self, path: str, kind: type[Answer]) -> Answer | None:
        base = self._base
        if base is None or time.monotonic() < self._silent_until:
            return None
        try:
            answer = await asyncio.to_thread(self._get, base, f"{base}/api/{path}")
            return msgspec.json.decode(answer, type=kind)
        except urllib.error.HTTPError as error:
            log.debug("management: %s for %s", error, path)  # other requests may succeed
            error.close()
        except (OSError, HTTPException, ValueError) as error:
            log.debug("%s: the management plugin does not answer: %s", base, error)
            self._silent_until = time.monotonic() + _LEFT_ALONE
        return None

    def _get(self, base: str, url: str) -> bytes:
        if self._opener is None:
            passwords = urllib.request.HTTPPasswordMgr()
            passwords.add_password(_REALM, base, self._address.user, self._address.password)
            tls = tls_context(self._address) if self._address.tls else None
            self._opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}),  # no proxy
                urllib.request.HTTPSHandler(context=tls),
                urllib.request.HTTPBasicAuthHandler(passwords),
            )
        with self._opener.open(url, timeout=_TIMEOUT) as response:
            return response.read(_LARGEST)


def _base(address: RabbitMQAddress, host: str, port: int) -> str | None:
    verified = address.tls and address.tls_verify
    if address.management == "false" or (address.management == "auto" and not verified):
        return None
    if address.management not in ("auto", "true"):
        return address.management.rstrip("/")
    if port + _PORT_OFFSET > _HIGHEST_PORT:
        return None
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if address.tls else "http"
    return f"{scheme}://{shown}:{port + _PORT_OFFSET}"
