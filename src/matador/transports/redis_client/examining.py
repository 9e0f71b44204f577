"""What is worth a look about a server that keeps messages: settings that can lose them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matador.model.message import Finding

SECTIONS = ("server", "replication", "memory", "persistence")
"""Those of ``INFO`` that the facts are in."""

_OLDEST = (6, 2)


def about_server(facts: Mapping[str, str], primary: str) -> Iterator[Finding]:
    """Its version and its role; ``primary``: how to find another one that is not a replica."""
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
        fix = "use a server of its own; a cluster is not followed"
        yield Finding("cluster", "the server is a node of a cluster", fix, serious=True)


def about_memory(facts: Mapping[str, str]) -> Iterator[Finding]:
    """What it does when it is full."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        text = f"maxmemory-policy is {policy}: a full server deletes messages"
        yield Finding("memory", text, fix)
    else:
        yield Finding("memory", "a full server refuses messages and deletes none")


def about_disk(facts: Mapping[str, str], fsync: str | None) -> Iterator[Finding]:
    """What it still knows after it died; ``fsync``: its setting, None if that is not shown."""
    if facts.get("aof_enabled") != "1":
        fix = "CONFIG SET appendonly yes, and the same in redis.conf"
        text = "the append-only file is off: what was confirmed is lost when the server dies"
        yield Finding("persistence", text, fix)
    elif facts.get("aof_last_write_status", "ok") != "ok":
        fix = "look at the server's log; free some room on its disk"
        yield Finding("persistence", "the last write of the append-only file failed", fix)
    elif fsync is not None and fsync != "always":
        # While the disk is slow the server puts off writing the file, and answers all the same.
        fix = "CONFIG SET appendfsync always, and the same in redis.conf, if that must not be"
        lost = "two seconds" if fsync == "everysec" else "half a minute"
        text = f"appendfsync is {fsync}: up to {lost} of confirmed messages go when the server dies"
        yield Finding("persistence", text, fix)
    else:
        yield Finding("persistence", "every message is in the append-only file when confirmed")
