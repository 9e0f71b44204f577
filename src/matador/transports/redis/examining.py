"""What is worth a look about a server that keeps messages: settings that can lose them."""

from __future__ import annotations

from matador.errors import TransportError
from matador.model.message import Finding
from matador.transports.redis.link import Link
from matador.transports.redis_client.examining import (
    SECTIONS,
    about_disk,
    about_memory,
    about_server,
)

_PRIMARY = "name the primary in the URL, or the Sentinels: redis+sentinel://…"


async def examine(link: Link, *, keeps: bool) -> list[Finding]:
    """Look at a server; ``keeps``: messages are stored there.

    Raises:
        NotConnectedError: not connected.
    """
    facts: dict[str, str] = {}
    for section in SECTIONS:
        facts.update(_read(await link.call("INFO", section)))
    findings = [*about_server(facts, _PRIMARY)]
    if keeps:
        findings += about_memory(facts)
        findings += about_disk(facts, await _setting(link, "appendfsync"))
    return findings


async def _setting(link: Link, name: str) -> str | None:
    try:
        found: list[bytes] = await link.call("CONFIG", "GET", name)
    except TransportError:  # not everybody may look, and not every service shows it
        return None
    return found[1].decode() if found else None


def _read(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, found, value in lines if found}
