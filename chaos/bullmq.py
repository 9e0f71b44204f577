"""BullMQ as a profile: the queues of its own keys, looked into with plain commands."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from chaos.checker import Stored
from chaos.profiles import target_of
from chaos.redis_server import RedisServerProfile
from matador.model.topology import DEAD_LETTER_KINDS

_LISTS = ("wait", "active", "paused")
_SETS = ("delayed", "prioritized", "waiting-children")


class _Metadata(msgspec.Struct):
    id: str = ""
    encoding: str = "json"


class _Data(msgspec.Struct):
    body: msgspec.Raw = msgspec.field(name="_jobData")
    metadata: _Metadata = msgspec.field(default_factory=_Metadata, name="_metadata")


_read = msgspec.json.Decoder(_Data).decode


class BullMQProfile(RedisServerProfile):
    scheme = "bullmq"
    drains = False  # scripts that take jobs write, too, and Redis refuses them

    def stored(self, queue: str) -> Sequence[Stored]:
        """See ``Profile``. Dead letters are failed jobs of their kind."""
        for kind in DEAD_LETTER_KINDS:
            if queue.endswith(f".{kind}"):
                base = queue.removesuffix(f".{kind}")
                failed = self._jobs(base, self._members(base, "failed"))
                return [
                    _stored(queue, id_, job)
                    for id_, job in failed
                    if job.get(b"matador-kind", b"undeliverable") == kind.encode()
                ]
        ids = [id_ for place in (*_LISTS, *_SETS) for id_ in self._members(queue, place)]
        return [_stored(queue, id_, job) for id_, job in self._jobs(queue, ids)]

    def depth(self, queue: str) -> int:
        if queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)):
            return len(self.stored(queue))
        with self._client.pipeline() as together:  # all at the same moment
            for place in _LISTS:
                together.llen(_key(queue, place))
            for place in _SETS:
                together.zcard(_key(queue, place))
            return sum(together.execute())

    def drop_queue(self, queue: str) -> None:
        self._client.delete(*self._client.keys(_key(queue, "*")))

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: something else is where its jobs should wait."""
        self._spoil(_key(queue, "wait"))

    def mend_queue(self, queue: str) -> None:
        self._mend(_key(queue, "wait"))

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``: something else is where failed jobs should go."""
        for key in self._client.keys("bull:*:meta"):
            self._spoil(key.decode().removesuffix("meta") + "failed")

    def job_queue(self, name: str) -> str:
        return name

    def completed_jobs(self, queue: str) -> set[str]:
        return {id_.decode() for id_ in self._members(queue, "completed")}

    def _members(self, queue: str, place: str) -> list[bytes]:
        key = _key(queue, place)
        kind = self._client.type(key)
        if kind == b"zset":
            return self._client.zrange(key, 0, -1)
        return self._client.lrange(key, 0, -1) if kind == b"list" else []

    def _jobs(self, queue: str, ids: Sequence[bytes]) -> Iterator[tuple[str, dict[bytes, Any]]]:
        with self._client.pipeline(transaction=False) as together:
            for id_ in ids:
                together.hgetall(f"bull:{queue}:".encode() + id_)
            for id_, fields in zip(ids, together.execute(), strict=True):
                yield id_.decode(), fields


def _key(queue: str, place: str) -> str:
    return f"bull:{queue}:{place}"


def _stored(queue: str, id_: str, job: dict[bytes, bytes]) -> Stored:
    data, reason = job.get(b"data", b""), job.get(b"failedReason")
    because = None if reason is None else reason.decode()
    job_target = target_of(data)
    if job_target is not None:  # a job of the jobs API
        return Stored(job_target, id_, queue, data, because)
    try:
        wrapped = _read(data)
    except msgspec.DecodeError:
        return Stored(None, id_, queue, data, because)
    body, metadata = bytes(wrapped.body), wrapped.metadata
    if metadata.encoding != "json":
        text = msgspec.json.decode(body, type=str)
        body = b64decode(text) if metadata.encoding == "base64" else text.encode()
    return Stored(target_of(body), metadata.id or id_, queue, body, because)
