"""What is worth a look about the server: settings that can lose jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matador.model.message import Finding
from matador.transports.bullmq.link import Link

_OLDEST = (6, 2)


async def examine(link: Link) -> list[Finding]:
    """Look at the server.

    Raises:
        NotConnectedError: not connected.
    """
    session = await link.session()
    facts: dict[str, Any] = {}
    for section in ("server", "replication", "memory", "persistence"):
        facts.update(await link.ask(session, "INFO", section))
    return [*_findings({name: str(value) for name, value in facts.items()})]


def _findings(facts: Mapping[str, str]) -> Iterator[Finding]:
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    name = "Valkey" if "valkey_version" in facts else "Redis"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        fix = "upgrade to Redis 6.2 or newer, or to Valkey"
        yield Finding("server", f"{name} {version} is too old", fix, serious=True)
    elif facts.get("role", "master") != "master":
        fix = "name the primary in the URL"
        yield Finding("server", f"{name} {version} is a replica", fix, serious=True)
    else:
        yield Finding("server", f"{name} {version}")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        yield Finding("memory", f"maxmemory-policy is {policy}: a full server deletes jobs", fix)
    else:
        yield Finding("memory", "a full server refuses jobs and deletes none")
    if facts.get("aof_enabled") != "1":
        fix = "CONFIG SET appendonly yes, and the same in redis.conf"
        text = "the append-only file is off: what was confirmed is lost when the server dies"
        yield Finding("persistence", text, fix)
    else:
        yield Finding("persistence", "the append-only file is on")
