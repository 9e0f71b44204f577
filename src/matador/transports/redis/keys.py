"""Names of keys. All keys of a queue, and those of its dead letters, share one hash tag.

So they live in one slot of a cluster, and a script that moves a message to the dead letters, or
back, touches one slot only.
"""

from __future__ import annotations

from matador.model.topology import DEAD_LETTER_KINDS

_ENDINGS = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)


def tag_of(queue: str) -> str:
    """What is hashed of a queue's name: dead letters count as the queue they come from.

    Example:
        >>> tag_of("shop.events"), tag_of("shop.events.undeliverable")
        ('shop.events', 'shop.events')
    """
    for ending in _ENDINGS:
        if queue.endswith(ending) and queue != ending:
            return queue.removesuffix(ending)
    return queue


def key_of(prefix: str, queue: str) -> str:
    """The key with a queue's settings; all its other keys begin with it.

    Example:
        >>> key_of("matador", "shop.events.unhandled")
        'matador:{shop.events}.unhandled'
    """
    tag = tag_of(queue)
    return f"{prefix}:{{{tag}}}{queue.removeprefix(tag)}"


def scope_keys(prefix: str, scope: str) -> tuple[str, str]:
    """Where it is noted how far a scope of ``send_once`` is sealed, and which queues it uses."""
    key = f"{prefix}:{{once:{scope}}}"
    return key, f"{key}:queues"
