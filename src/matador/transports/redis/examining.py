"""What is worth a look about a server that keeps messages: settings that can lose them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matador.errors import TransportError
from matador.model.message import Finding
from matador.transports.redis.link import Link

_OLDEST = (6, 2)


async def examine(link: Link, *, keeps: bool) -> list[Finding]:
    """Look at a server; ``keeps``: messages are stored there.

    Raises:
        NotConnectedError: not connected.
    """
    facts: dict[str, str] = {}
    for section in ("server", "replication", "memory", "persistence"):
        facts.update(_read(await link.call("INFO", section)))
    findings = [*_about_server(facts)]
    if keeps:
        findings += _about_memory(facts)
        findings += _about_disk(facts, await _setting(link, "appendfsync"))
    return findings


def _about_server(facts: Mapping[str, str]) -> Iterator[Finding]:
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    name = "Valkey" if "valkey_version" in facts else "Redis"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        fix = "upgrade to Redis 6.2 or newer, or to Valkey"
        yield Finding("server", f"{name} {version} is too old", fix, serious=True)
    elif facts.get("role", "master") != "master":
        fix = "name the primary in the URL, or the Sentinels: redis+sentinel://…"
        yield Finding("server", f"{name} {version} is a replica", fix, serious=True)
    else:
        yield Finding("server", f"{name} {version}")
    if facts.get("cluster_enabled") == "1":
        fix = "use a server of its own; a cluster is not followed"
        yield Finding("cluster", "the server is a node of a cluster", fix, serious=True)


def _about_memory(facts: Mapping[str, str]) -> Iterator[Finding]:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        text = f"maxmemory-policy is {policy}: a full server deletes messages"
        yield Finding("memory", text, fix)
    else:
        yield Finding("memory", "a full server refuses messages and deletes none")


def _about_disk(facts: Mapping[str, str], fsync: str | None) -> Iterator[Finding]:
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


async def _setting(link: Link, name: str) -> str | None:
    try:
        found: list[bytes] = await link.call("CONFIG", "GET", name)
    except TransportError:  # not everybody may look, and not every service shows it
        return None
    return found[1].decode() if found else None


def _read(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, found, value in lines if found}
