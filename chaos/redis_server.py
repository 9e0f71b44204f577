"""A Redis of the run's own: started, ended, hidden behind a proxy, starved of memory.

Every write is on the disk before it is answered (``appendfsync always``), so that nothing that was
confirmed may be missing after a kill.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import redis

from chaos.profiles import SEND_TIMEOUT, Unplayable
from chaos.proxy import Proxy
from chaos.servers import own_server

_BIN = Path(os.environ.get("MATADOR_REDIS_BIN", "/usr/bin"))
_ASIDE = ":aside"
_PATIENCE = 30.0
_LOOK = 0.02


class RedisServerProfile:
    """What the profiles on Redis share. See ``Profile``, ``Restarts``, ``BehindProxy`` and
    ``BlocksPublishers``."""

    scheme: str
    durable = True
    leases = True
    ordered = False
    atomic = True

    def __init__(self, folder: Path) -> None:
        if not (_BIN / "redis-server").exists():
            raise Unplayable("there is no Redis: script/brokers up redis installs it")
        self._server = own_server("redis", (("MATADOR_REDIS_FSYNC", "always"),))
        self._proxy: Proxy | None = None
        self._up = True
        self._spoiled: list[str] = []
        # Untyped: an answer of redis-py may be anything.
        self._client: Any = redis.Redis(port=self._server.port, protocol=2)
        self._client.flushall()

    def url(self, lease: float) -> str:
        port = self._server.port if self._proxy is None else self._proxy.port
        heartbeat = max(1.0, min(5.0, lease / 2))
        return (
            f"{self.scheme}://127.0.0.1:{port}/0"
            f"?lease={lease:g}&heartbeat={heartbeat:g}&timeout={SEND_TIMEOUT:g}"
        )

    def damage(self) -> str | None:
        state: Any = self._client.info("persistence")
        status = state["aof_last_write_status"]
        return None if status == "ok" else f"the append-only file: {status}"

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if not self._up:
            self.start()
        self.unblock()
        self._client.close()

    def stop(self, *, kill: bool = False) -> None:
        self._up = False
        self._server.stop(kill=kill)

    def start(self) -> None:
        self._server.start()
        self._client.connection_pool.disconnect()
        deadline = time.monotonic() + _PATIENCE
        while True:  # it answers, but may still be loading
            try:
                self._client.ping()
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK)
            else:
                break
        self._up = True

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy(self._server.port)
        return self._proxy

    def block(self) -> None:
        """See ``BlocksPublishers``: less memory than it has in use."""
        self._client.config_set("maxmemory", 1)

    def unblock(self) -> None:
        self._client.config_set("maxmemory", 0)

    def _spoil(self, key: str) -> None:
        """Put something else where others expect a list, a set or a stream."""
        if self._client.exists(key):
            self._client.rename(key, key + _ASIDE)
        self._client.set(key, "something else")
        self._spoiled.append(key)

    def _mend(self, key: str) -> None:
        self._client.delete(key)
        if self._client.exists(key + _ASIDE):
            self._client.rename(key + _ASIDE, key)
        self._spoiled.remove(key)

    def accept_dead_letters(self) -> None:
        for key in list(self._spoiled):
            self._mend(key)
