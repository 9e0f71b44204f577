"""Redis as a profile: a server of the run's own, looked into with plain commands.

Every write is on the disk before it is answered (``appendfsync always``), so that nothing that was
confirmed may be missing after a kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis

from chaos.checker import Stored
from chaos.profiles import SEND_TIMEOUT, Unplayable, target_of
from chaos.proxy import Proxy
from chaos.servers import own_server
from matador.model.topology import DEAD_LETTER_KINDS

_BIN = Path(os.environ.get("MATADOR_REDIS_BIN", "/usr/bin"))
_LANES = ("t", "0")
_ASIDE = ":aside"
_PATIENCE = 30.0
_LOOK = 0.02
_PLACE = 16  # characters in front of a delayed message


class RedisProfile:
    """See ``Profile``, ``Restarts``, ``BehindProxy``, ``BlocksPublishers``, ``LosesQueues``,
    ``SpoilsQueues`` and ``RefusesDeadLetters``."""

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
        """See ``Profile``."""
        port = self._server.port if self._proxy is None else self._proxy.port
        heartbeat = max(1.0, min(5.0, lease / 2))
        return (
            f"redis://127.0.0.1:{port}/0"
            f"?lease={lease:g}&heartbeat={heartbeat:g}&timeout={SEND_TIMEOUT:g}"
        )

    def stored(self, queue: str) -> Sequence[Stored]:
        """See ``Profile``."""
        base = _base(queue)
        found: list[Stored] = []
        for lane in _LANES:
            if self._client.type(f"{base}:{lane}") == b"stream":
                rows: Any = self._client.xrange(f"{base}:{lane}")
                found += [_stored(queue, fields) for _, fields in rows]
        delayed: Any = self._client.zrange(f"{base}:delayed", 0, -1)
        for member in delayed:
            _, flat = msgspec.msgpack.decode(member[_PLACE:], type=tuple[int, list[str]])
            pairs = zip(flat[::2], flat[1::2], strict=True)
            found.append(_stored(queue, {name.encode(): text.encode() for name, text in pairs}))
        return found

    def depth(self, queue: str) -> int:
        """See ``Profile``."""
        base = _base(queue)
        with self._client.pipeline() as together:  # all at the same moment
            together.zcard(f"{base}:delayed")
            for lane in _LANES:
                together.xlen(f"{base}:{lane}")
            return sum(together.execute())

    def damage(self) -> str | None:
        """See ``Profile``."""
        state: Any = self._client.info("persistence")
        status = state["aof_last_write_status"]
        return None if status == "ok" else f"the append-only file: {status}"

    def close(self) -> None:
        """See ``Profile``."""
        if self._proxy is not None:
            self._proxy.close()
        if not self._up:
            self.start()
        self.unblock()
        self._client.close()

    def stop(self, *, kill: bool = False) -> None:
        """See ``Restarts``."""
        self._up = False
        self._server.stop(kill=kill)

    def start(self) -> None:
        """See ``Restarts``."""
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
        """See ``BehindProxy``."""
        if self._proxy is None:
            self._proxy = Proxy(self._server.port)
        return self._proxy

    def block(self) -> None:
        """See ``BlocksPublishers``: less memory than it has in use."""
        self._client.config_set("maxmemory", 1)

    def unblock(self) -> None:
        """See ``BlocksPublishers``."""
        self._client.config_set("maxmemory", 0)

    def drop_queue(self, queue: str) -> None:
        """See ``LosesQueues``."""
        base = _base(queue)
        names = ["", ":delayed", ":uncounted", ":bell", *(f":{lane}" for lane in _LANES)]
        self._client.delete(*(f"{base}{name}" for name in names))

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: something else is where its messages should go."""
        self._spoil(f"{_base(queue)}:0")

    def mend_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``."""
        self._mend(f"{_base(queue)}:0")

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``: the same, for all of them."""
        for kind in DEAD_LETTER_KINDS:
            self._spoiled += [key.decode() for key in self._client.keys(f"matador:*.{kind}:0")]
        for key in self._spoiled:
            self._spoil(key)

    def accept_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``."""
        for key in self._spoiled:
            self._mend(key)
        self._spoiled.clear()

    def _spoil(self, key: str) -> None:
        self._client.rename(key, key + _ASIDE)
        self._client.set(key, "not a stream")

    def _mend(self, key: str) -> None:
        self._client.rename(key + _ASIDE, key)


def _base(queue: str) -> str:
    """The key of a queue; dead letters share the tag of the queue they come from."""
    for kind in DEAD_LETTER_KINDS:
        if queue.endswith(f".{kind}"):
            return f"matador:{{{queue.removesuffix(f'.{kind}')}}}.{kind}"
    return f"matador:{{{queue}}}"


def _stored(queue: str, fields: dict[bytes, bytes]) -> Stored:
    body, reason = fields.get(b"b", b""), fields.get(b"r")
    id_ = fields.get(b"i", b"").decode()
    return Stored(target_of(body), id_, queue, body, None if reason is None else reason.decode())
