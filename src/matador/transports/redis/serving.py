"""A connection for something other than messages: the steps and the duplicates of stores."""

from __future__ import annotations

from matador.model.message import ConnectionState
from matador.transports.redis.channel import Channel
from matador.transports.redis.link import Link
from matador.transports.redis.opening import Opener
from matador.transports.redis.url import parse_url


class Serving:
    """Connected once opened, and again when the connection was lost."""

    name = "matador"
    """What the server shows of the connection."""

    def __init__(self, url: str, *, prefix: str | None = None) -> None:
        given = parse_url(url)
        opener = Opener(
            given,
            name=self.name,
            timeout=given.options.get("timeout", 10.0),
            heartbeat=given.options.get("heartbeat", 5.0),
        )
        self.prefix = prefix or given.prefix or "matador"
        self.link = Link(opener, restore=_nothing, on_state=_nobody)

    @property
    def where(self) -> str:
        """The server in a few words, without credentials."""
        return self.link.where

    async def open(self) -> None:
        """Connect, and stay connected from then on."""
        await self.link.start()

    async def close(self) -> None:
        """Drop the connection."""
        await self.link.stop()


def milliseconds(time: float) -> int:
    """Seconds as the server takes them; at least one millisecond."""
    return max(1, round(time * 1000))


async def _nothing(channel: Channel) -> None:
    """There is nothing to restore."""


def _nobody(state: ConnectionState) -> None:
    """Nobody listens."""
