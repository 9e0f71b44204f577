"""Steps of resumable subscribers on the server: what ``RedisCheckpointStore`` works with."""

from __future__ import annotations

from matador.transports.redis.scripts import script
from matador.transports.redis.serving import Serving, milliseconds


class Steps(Serving):
    """One hash an envelope, from step to value. Raises errors of transports."""

    name = "matador-checkpoints"

    async def load(self, envelope_id: str) -> dict[str, bytes]:
        """All steps of an envelope."""
        flat: list[bytes] = await self.link.call("HGETALL", self._key(envelope_id))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        # A name that is no text is not of our making, and no step asks for it.
        return {step.decode(errors="replace"): value for step, value in pairs}

    async def save(self, envelope_id: str, step: str, value: bytes, ttl: float) -> None:
        """Store a step, and keep all of the envelope for ``ttl`` seconds from now."""
        arguments = (step, value, milliseconds(ttl))
        await self.link.run(script("save_step", common=None), [self._key(envelope_id)], arguments)

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Keep the steps of an envelope for ``ttl`` seconds from now."""
        await self.link.call("PEXPIRE", self._key(envelope_id), milliseconds(ttl))

    async def delete(self, envelope_id: str) -> None:
        """Forget the steps of an envelope."""
        await self.link.call("UNLINK", self._key(envelope_id))

    def _key(self, envelope_id: str) -> str:
        return f"{self.prefix}:steps:{{{envelope_id}}}"
