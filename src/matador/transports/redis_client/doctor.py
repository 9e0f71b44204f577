"""The findings of ``matador doctor`` about a server: settings that can lose messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias

from matador.errors import TransportError
from matador.model.message import Finding

Command: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs a command; raises errors of transports."""

_OLDEST = (6, 2)


async def examine(call: Command, *, primary: str, stores: bool = True) -> list[Finding]:
    """Examine a server. Raises ``NotConnectedError``.

    ``primary`` says how to reach the primary, for an address that leads to a replica. ``stores``:
    whether messages are stored there.
    """
    facts = _facts(await call("INFO"))
    findings = [*about_server(facts, primary)]
    if stores:
        findings += about_memory(facts)
        findings += about_disk(facts, await _fsync(call))
    return findings


async def _fsync(call: Command) -> str | None:
    try:
        found: list[bytes] = await call("CONFIG", "GET", "appendfsync")
    except TransportError:  # not every user may read it, and not every service shows it
        return None
    return found[1].decode() if found else None


def _facts(info: bytes | Mapping[str, object]) -> dict[str, str]:
    """The answer to ``INFO``, which some clients parse."""
    if isinstance(info, Mapping):
        return {name: str(value) for name, value in info.items()}
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, found, value in lines if found}


def about_server(facts: Mapping[str, str], primary: str) -> Iterator[Finding]:
    """Its version and role; ``primary``: how to reach the primary instead of a replica."""
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    name = "Valkey" if "valkey_version" in facts else "Redis"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        fix = "upgrade to Redis 6.2 or newer, or to Valkey"
        yield Finding("server", f"{name} {version} is too old", fix, serious=True)
    elif facts.get("role", "master") != "master":
        yield Finding("server", f"{name} {version} is a replica", primary, serious=True)
    else:
        yield Finding("server", f"{name} {version}")
    if facts.get("cluster_enabled") == "1":
        fix = "use a standalone server; Redis Cluster is not supported"
        yield Finding("cluster", "the server is a node of a cluster", fix, serious=True)


def about_memory(facts: Mapping[str, str]) -> Iterator[Finding]:
    """The finding about a full memory."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        text = f"maxmemory-policy is {policy}: a full server deletes messages"
        yield Finding("memory", text, fix)
    else:
        yield Finding("memory", "a full server refuses messages and deletes none")


def about_disk(facts: Mapping[str, str], fsync: str | None) -> Iterator[Finding]:
    """The finding about persistence; ``fsync``: that setting, None if the server hides it."""
    if facts.get("aof_enabled") != "1":
        fix = "CONFIG SET appendonly yes, and the same in redis.conf"
        text = "the append-only file is off: confirmed messages are lost if the server crashes"
        yield Finding("persistence", text, fix)
    elif facts.get("aof_last_write_status", "ok") != "ok":
        fix = "check the server's log; free disk space"
        yield Finding("persistence", "the last write of the append-only file failed", fix)
    elif fsync is not None and fsync != "always":
        # While the disk is slow, the server delays the write but confirms it.
        fix = "CONFIG SET appendfsync always, and the same in redis.conf, to lose none"
        lost = "two seconds" if fsync == "everysec" else "half a minute"
        text = f"appendfsync is {fsync}: a crash loses up to {lost} of confirmed messages"
        yield Finding("persistence", text, fix)
    else:
        yield Finding("persistence", "every confirmed message is in the append-only file")
