"""Who was the first with a key, on the server: what ``RedisDuplicateStore`` works with."""

from __future__ import annotations

from matador.transports.redis.scripts import script
from matador.transports.redis.serving import Serving, milliseconds


class Firsts(Serving):
    """One hash a key, with who works on it or what came of it. Raises errors of transports."""

    name = "matador-duplicates"

    async def begin(self, key: str, owner: str, lease: float) -> list[bytes]:
        """Hold a new key; how it stood: ``new``, ``running``, or ``done`` and its result."""
        arguments = (owner, milliseconds(lease))
        return await self.link.run(
            script("duplicate_begin", common=None), [self._key(key)], arguments
        )

    async def hold(self, key: str, owner: str, lease: float) -> bool:
        """Hold a key for longer; False: it is another's, or done."""
        return await self._end(key, owner, "hold", lease)

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        """Keep a result; False: another one was quicker."""
        return await self._end(key, owner, "finish", ttl, result)

    async def forget(self, key: str, owner: str) -> None:
        """Let a key be new again, if ``owner`` holds it."""
        await self._end(key, owner, "forget", 0.0)

    async def _end(
        self, key: str, owner: str, action: str, time: float, result: bytes = b""
    ) -> bool:
        arguments = (owner, action, milliseconds(time), result)
        done: int = await self.link.run(
            script("duplicate_end", common=None), [self._key(key)], arguments
        )
        return done == 1

    def _key(self, key: str) -> str:
        return f"{self.prefix}:duplicates:{{{key}}}"
