"""Odd messages, put straight into the store of the in-process transport."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.corpus import CORPUS
from tests.fuzz.mutations import HEADER_VALUES, mutate

from matador.model.message import Message
from matador.transports.memory import MemoryTransport


def _deep() -> Any:
    nested: Any = []
    for _ in range(3000):
        nested = [nested]
    return nested


_TEXTS = ("", "\0", "\udcff", "x" * 70_000, "é漢😀")
_ODD: dict[str, tuple[Any, ...]] = {
    "id": _TEXTS,
    "body": (b"", b"\0", b"\xff", b"[" * 3000),
    "headers": ({1: 2}, {None: None}, {"\udcff": _deep()}, {"x": object()}, {"x": "x" * 200_000}),
    "delay": (-1.0, -1e308, float("-inf")),
    "priority": (-(2**70), 2**70, 0, -1),
    "ordering_key": _TEXTS,
}


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except RecursionError:
        return "nested 3,000 deep"


class MemoryEntries:
    """Puts messages into queues that are there already."""

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport

    async def write(self, queue: str, random: Random) -> str:
        sample, _ = mutate(random.choice(CORPUS), random)
        fields: dict[str, Any] = {"id": "foreign", "body": sample.body, "headers": sample.headers}
        if random.random() < 0.3:
            fields["headers"] = {"x-odd": random.choice(HEADER_VALUES), **sample.headers}
        for name in random.sample(list(_ODD), random.choice((0, 1, 1, 2))):
            fields[name] = random.choice(_ODD[name])
        message = Message(queue=queue, **fields)
        assert self._transport._store.put([message]) == [None]
        return ", ".join(f"{name}={_shown(value)}" for name, value in fields.items())

    async def close(self) -> None:
        pass
