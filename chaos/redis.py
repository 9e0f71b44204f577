"""Redis streams as a profile, looked into with plain commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from chaos.checker import Stored
from chaos.profiles import target_of
from chaos.redis_server import RedisServerProfile
from matador.model.topology import DEAD_LETTER_KINDS

_LANES = ("t", "0")
_PLACE = 16  # characters in front of a delayed message


class RedisProfile(RedisServerProfile):
    scheme = "redis"
    drains = True

    def stored(self, queue: str) -> Sequence[Stored]:
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
        base = _base(queue)
        with self._client.pipeline() as together:  # all at the same moment
            together.zcard(f"{base}:delayed")
            for lane in _LANES:
                together.xlen(f"{base}:{lane}")
            return sum(together.execute())

    def drop_queue(self, queue: str) -> None:
        base = _base(queue)
        names = ["", ":delayed", ":uncounted", ":bell", *(f":{lane}" for lane in _LANES)]
        self._client.delete(*(f"{base}{name}" for name in names))

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: something else is where its messages should go."""
        self._spoil(f"{_base(queue)}:0")

    def mend_queue(self, queue: str) -> None:
        self._mend(f"{_base(queue)}:0")

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``: the same, for all of them."""
        for kind in DEAD_LETTER_KINDS:
            for key in self._client.keys(f"matador:*.{kind}:0"):
                self._spoil(key.decode())


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
