"""How names, ids and priorities of this package look in BullMQ, and back."""

from __future__ import annotations

import contextlib

from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind

_HEX = "hex~"  # before ids that are not UTF-8

KEYS = (
    *("wait", "paused", "active", "delayed", "prioritized", "completed", "failed", "meta", "id"),
    *("events", "marker", "stalled", "stalled-check", "limiter", "pc", "repeat"),
    "waiting-children",
)
"""What BullMQ keeps beside the jobs of a queue: a job of such an id would overwrite it."""

LOWEST = 2_097_152
"""BullMQ's last priority; its first is 1. Without one (0) a job comes before all that have one."""


def bull_name(queue: str) -> str:
    """The name of a BullMQ queue. BullMQ allows no colon, and ours no percent sign.

    Example:
        >>> bull_name("Owner:orders")
        'Owner%3Aorders'
    """
    return queue.replace(":", "%3A")


def job_id(message_id: str) -> str:
    """The id of the job for a message: the message's own where BullMQ allows it, else made there.

    Whole numbers are BullMQ's own ids, and a colon would make part of a key.

    Example:
        >>> job_id("m-1"), job_id("42"), job_id("a:b")
        ('m-1', '', '')
    """
    if ":" in message_id or message_id.lstrip("-").isdecimal() or message_id in KEYS:
        return ""
    return "" if message_id.startswith(_HEX) else message_id


def id_text(id_: bytes) -> str:
    """The id of a job as text, from which ``id_bytes`` makes the same bytes.

    Example:
        >>> id_text(b"m-1"), id_text(b"\\xff")
        ('m-1', 'hex~ff')
    """
    with contextlib.suppress(UnicodeDecodeError):
        if not (text := id_.decode()).startswith(_HEX):
            return text
    return _HEX + id_.hex()


def id_bytes(id_: str) -> bytes:
    """The id of a job as the server knows it. See ``id_text``."""
    return bytes.fromhex(id_[len(_HEX) :]) if id_.startswith(_HEX) else id_.encode()


def bull_priority(priority: int | None) -> int:
    """BullMQ's number for a priority of ours, where a higher one comes first.

    Example:
        >>> bull_priority(9) < bull_priority(1) < bull_priority(None)
        True
    """
    if priority is None:
        return LOWEST
    return min(max(LOWEST - 1 - priority, 1), LOWEST - 1)


def our_priority(number: int) -> int | None:
    """The priority of a job that somebody else has added."""
    return None if number in (0, LOWEST) else LOWEST - 1 - number


def letters_of(queue: str) -> tuple[str, DeadLetterKind] | None:
    """The queue and the kind, if this is the name of dead letters.

    Example:
        >>> letters_of("shop.events.unhandled")
        ('shop.events', 'unhandled')
    """
    for kind in DEAD_LETTER_KINDS:
        base = queue.removesuffix(f".{kind}")
        if base and base != queue:
            return base, kind
    return None
