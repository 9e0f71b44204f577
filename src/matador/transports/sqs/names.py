"""The names of queues and message groups on SQS."""

from __future__ import annotations

import re
from hashlib import sha256

from matador.errors import ConfigurationError
from matador.model.message import Message
from matador.model.topology import DEAD_LETTER_KINDS

_LEGAL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SPECIAL = re.compile(r"[^A-Za-z0-9_-]|_(?=[0-9A-F]{2}|[^A-Za-z0-9-]|$)", re.ASCII)
_GROUP = re.compile(r"[!-~]{1,128}", re.ASCII)
_LONGEST = 80
_FIFO = ".fifo"


def is_fifo(queue: str) -> bool:
    """Whether this is the name of a FIFO queue, or of the dead letters of one."""
    for kind in DEAD_LETTER_KINDS:
        queue = queue.removesuffix(f".{kind}")
    return queue.endswith(_FIFO)


def sqs_name(queue: str, *, fifo: bool = False) -> str:
    """The name of a queue on SQS, which takes letters, digits, ``-`` and ``_`` only.

    A valid SQS name stays unchanged. In other names, a dot becomes ``__`` and any other invalid
    character becomes ``_`` and two hexadecimal digits. An underscore that would look like one of
    these is escaped, too, so that different names stay different. FIFO queues end in ``.fifo``.

    Raises:
        ConfigurationError: it is too long for SQS.

    Example:
        >>> sqs_name("shop.events"), sqs_name("shop.events", fifo=True), sqs_name("a:b.c_d")
        ('shop__events', 'shop__events.fifo', 'a_3Ab__c_d')
    """
    fifo = fifo or is_fifo(queue)
    base = queue.removesuffix(_FIFO)
    if not _LEGAL.fullmatch(base):
        base = _SPECIAL.sub(_escaped, base)
    name = base + _FIFO if fifo else base
    if len(name) > _LONGEST:
        raise ConfigurationError(
            f"SQS: the name {name[:40]!r}… of queue {queue[:40]!r} has {len(name)} characters, and "
            f"SQS allows {_LONGEST}; choose a shorter name or namespace"
        )
    return name


def _escaped(found: re.Match[str]) -> str:
    return "__" if found[0] == "." else "".join(f"_{byte:02X}" for byte in found[0].encode())


def group_of(message: Message) -> str | None:
    """The message group in a FIFO queue: the ordering key; None: a separate group."""
    key = message.ordering_key
    if key is None or _GROUP.fullmatch(key):
        return key
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
