"""What is worth a look about the server: settings that can lose jobs."""

from __future__ import annotations

from typing import Any

from matador.errors import TransportError
from matador.model.message import Finding
from matador.transports.bullmq.link import Link, Session
from matador.transports.redis_client.examining import (
    SECTIONS,
    about_disk,
    about_memory,
    about_server,
)


async def examine(link: Link) -> list[Finding]:
    """Look at the server.

    Raises:
        NotConnectedError: not connected.
    """
    session = await link.session()
    said: dict[str, Any] = {}
    for section in SECTIONS:
        said.update(await link.ask(session, "INFO", section))
    facts = {name: str(value) for name, value in said.items()}
    return [
        *about_server(facts, "name the primary in the URL"),
        *about_memory(facts),
        *about_disk(facts, await _fsync(link, session)),
    ]


async def _fsync(link: Link, session: Session) -> str | None:
    try:
        found: list[bytes] = await link.ask(session, "CONFIG", "GET", "appendfsync")
    except TransportError:  # not everybody may look, and not every service shows it
        return None
    return found[1].decode() if found else None
