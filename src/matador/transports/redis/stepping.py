"""Steps of resumable subscribers on the server: what ``RedisCheckpointStore`` works with."""

from __future__ import annotations

from matador.model.message import ConnectionState
from matador.transports.redis.channel import Channel
from matador.transports.redis.link import Link
from matador.transports.redis.opening import Opener
from matador.transports.redis.scripts import script
from matador.transports.redis.url import parse_url


class Steps:
    """One hash an envelope, from step to value. Raises errors of transports."""

    def __init__(self, url: str, *, prefix: str | None = None) -> None:
        given = parse_url(url)
        opener = Opener(
            given,
            name="matador-checkpoints",
            timeout=given.options.get("timeout", 10.0),
            heartbeat=given.options.get("heartbeat", 5.0),
        )
        self._prefix = prefix or given.prefix or "matador"
        self._link = Link(opener, restore=_nothing, on_state=_nobody)

    @property
    def where(self) -> str:
        """The server in a few words, without credentials."""
        return self._link.where

    async def open(self) -> None:
        """Connect, and stay connected from then on."""
        await self._link.start()

    async def close(self) -> None:
        """Drop the connection."""
        await self._link.stop()

    async def load(self, envelope_id: str) -> dict[str, bytes]:
        """All steps of an envelope."""
        flat: list[bytes] = await self._link.call("HGETALL", self._key(envelope_id))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {step.decode(): value for step, value in pairs}

    async def save(self, envelope_id: str, step: str, value: bytes, ttl: float) -> None:
        """Store a step, and keep all of the envelope for ``ttl`` seconds from now."""
        arguments = (step, value, _milliseconds(ttl))
        await self._link.run(script("save_step", common=None), [self._key(envelope_id)], arguments)

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Keep the steps of an envelope for ``ttl`` seconds from now."""
        await self._link.call("PEXPIRE", self._key(envelope_id), _milliseconds(ttl))

    async def delete(self, envelope_id: str) -> None:
        """Forget the steps of an envelope."""
        await self._link.call("UNLINK", self._key(envelope_id))

    def _key(self, envelope_id: str) -> str:
        return f"{self._prefix}:steps:{{{envelope_id}}}"


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))


async def _nothing(channel: Channel) -> None:
    """There is nothing to restore."""


def _nobody(state: ConnectionState) -> None:
    """Nobody listens."""
