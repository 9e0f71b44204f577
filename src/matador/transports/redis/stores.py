"""The server side of ``RedisCheckpointStore`` and ``RedisDuplicateStore``."""

from __future__ import annotations

from typing import Any

from matador.transports.kit.options import read_address
from matador.transports.redis.client import RedisClient, script
from matador.transports.redis.options import RedisAddress


class RedisStore:
    """A connection to a server for data other than messages. Raises transport errors."""

    name = "matador"
    """The client name that ``CLIENT LIST`` shows."""

    def __init__(self, url: str, *, prefix: str | None = None) -> None:
        address = read_address(RedisAddress, url, {"prefix": prefix})
        self.prefix = address.prefix
        self.client = RedisClient(address, name=self.name)

    @property
    def where(self) -> str:
        """The server in a few words, without credentials."""
        return self.client.where

    async def open(self) -> None:
        """Connect, and stay connected from then on."""
        await self.client.start()

    async def close(self) -> None:
        """Disconnect."""
        await self.client.stop()


class CheckpointRows(RedisStore):
    """One hash per envelope, from step to value."""

    name = "matador-checkpoints"

    async def load(self, envelope_id: str) -> dict[str, bytes]:
        """All steps of an envelope."""
        flat: list[bytes] = await self.client.call("HGETALL", self._key(envelope_id))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        # A name that is not UTF-8 is foreign, and no step uses it.
        return {step.decode(errors="replace"): value for step, value in pairs}

    async def save(self, envelope_id: str, step: str, value: bytes, ttl: float) -> None:
        """Store a step, and keep all steps of the envelope for ``ttl`` seconds from now."""
        arguments = (step, value, _milliseconds(ttl))
        await self.client.run(script("save_step", None), [self._key(envelope_id)], arguments)

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Keep the steps of an envelope for ``ttl`` seconds from now."""
        await self.client.call("PEXPIRE", self._key(envelope_id), _milliseconds(ttl))

    async def delete(self, envelope_id: str) -> None:
        """Delete the steps of an envelope."""
        await self.client.call("UNLINK", self._key(envelope_id))

    def _key(self, envelope_id: str) -> str:
        return f"{self.prefix}:steps:{{{envelope_id}}}"


class DuplicateRows(RedisStore):
    """One hash per key, with its owner or its result."""

    name = "matador-duplicates"

    async def run(
        self, action: str, key: str, owner: str, time: float = 0.0, result: bytes = b""
    ) -> Any:
        """Run an action of the script ``duplicates``."""
        arguments = (owner, action, _milliseconds(time), result)
        return await self.client.run(script("duplicates", None), [self._key(key)], arguments)

    async def clear(self) -> None:
        """Delete all keys."""
        cursor: bytes = b"0"
        while True:
            cursor, keys = await self.client.call("SCAN", cursor, "MATCH", self._key("*"))
            if keys:
                await self.client.call("UNLINK", *keys)
            if cursor == b"0":
                return

    def _key(self, key: str) -> str:
        return f"{self.prefix}:duplicates:{{{key}}}"


def _milliseconds(time: float) -> int:
    """Seconds as the server expects them; at least one millisecond."""
    return max(1, round(time * 1000))
