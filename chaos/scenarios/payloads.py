"""Messages that are not what they should be: F21 and F22."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence

from chaos.application import NAMESPACE
from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from matador.model.message import Message
from matador.model.topology import dead_letter_name
from matador.transports.urls import transport_from_url

QUEUE = f"{NAMESPACE}.events"


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F21", "undecodable or invalid: dead-lettered, raw bytes kept, neighbours fine")(
        bad_payloads
    )
    catalogue.add("F22", "too large: refused before it is sent, with the limit named")(too_large)


def bad_payloads(arena: Arena) -> str:
    """Bytes of every bad kind among good messages, and one worker for all of them."""
    app = arena.app()
    good = arena.many(20)
    arena.publish(app, good, together=good)
    unreadable = {f"unreadable-{number}": body for number, body in enumerate(_UNREADABLE)}
    unhandled = {
        "unknown-event": _envelope("unknown-event", {}, event="no.such"),
        "unknown-subscriber": _envelope("unknown-subscriber", {}, to="nobody"),
    }
    invalid = {
        "wrong-type": _envelope("wrong-type", {"seq": "ten", "key": None, "filling": ""}),
        "no-payload": _envelope("no-payload", None),
    }
    bad = {**unreadable, **unhandled, **invalid}
    asyncio.run(_store(app.url, bad))
    worker = arena.worker(app)
    arena.publish(app, good, first=good, together=good)
    arena.wait_empty()
    expect(worker.alive, f"the worker did not survive it:\n{worker.output[-2000:]}")
    undeliverable = _dead(arena, "undeliverable")
    expect(
        sorted(undeliverable) == sorted([*unreadable, *invalid]),
        f"undeliverable: {sorted(undeliverable)}",
    )
    expect(
        sorted(_dead(arena, "unhandled")) == sorted(unhandled),
        f"unhandled: {sorted(_dead(arena, 'unhandled'))}",
    )
    altered = [id_ for id_, body in unreadable.items() if undeliverable[id_] != body]
    expect(not altered, f"not kept byte for byte: {altered}")
    expect(len(arena.history.completed) == 2 * good, "a neighbour was not handled")
    arena.judge()
    return f"{len(bad)} bad ones dead-lettered, {2 * good} neighbours handled by the same process"


def too_large(arena: Arena) -> str:
    """A message over the limit between two that are not."""
    app = arena.app()
    arena.publish(app, 1, size=1000)
    arena.publish(app, 1, first=1, size=2 << 20)
    arena.publish(app, 1, first=2, size=1000)
    refused = list(arena.look().refused.values())
    expect([one.seq for one in refused] == [1], f"refused: {refused}")
    expect(refused[0].error == "MessageTooLargeError", f"refused with {refused[0].error}")
    limit = re.search("the limit is ([0-9,]+) bytes", refused[0].text)  # the broker's may be lower
    named = limit is not None and int(limit[1].replace(",", "")) <= 1 << 20
    expect(named, f"the limit is not named: {refused[0].text}")
    expect(arena.depth() == 2, f"{arena.depth()} are stored, not 2")
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return refused[0].text


_UNREADABLE: Sequence[bytes] = (
    b"",
    b"\x00",
    b"\xff\xfe\xfd",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b'{"id": 1}',
    b'{"id":"a","id":"b","data":{},"docket":{}}',
    b"[" * 100_000,
    b'{"id":"x","data":{"seq":NaN},"docket":{}}',
)


def _envelope(
    id_: str, data: object, *, event: str = "chaos.happened", to: str = "handle"
) -> bytes:
    docket = {
        "createdAt": "2026-11-15T19:02:37.435Z",
        "eventKey": event,
        "targetSubscriber": to,
        "attempts": 1,
        "importance": "can-ignore",
    }
    return json.dumps({"id": id_, "data": data, "docket": docket}).encode()


def _headers(body: bytes) -> dict[str, str | int]:
    """The docket of an envelope as headers: some brokers have it there. None: it has no docket."""
    try:
        docket = json.loads(body)["docket"]
        return {
            "x-matador-event-key": docket["eventKey"],
            "x-matador-subscriber": docket["targetSubscriber"],
            "x-matador-created-at": docket["createdAt"],
            "x-matador-importance": docket["importance"],
            "x-matador-attempts": docket["attempts"],
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


async def _store(url: str, bodies: Mapping[str, bytes]) -> None:
    transport = transport_from_url(url)
    await transport.connect()
    try:
        in_headers = transport.capabilities.docket_in_headers
        messages = [
            Message(id_, QUEUE, body, _headers(body) if in_headers else {})
            for id_, body in bodies.items()
        ]
        expect(not any(await transport.send(messages)), "the bad ones could not be stored")
    finally:
        await transport.disconnect()


def _dead(arena: Arena, kind: str) -> dict[str, bytes]:
    queue = dead_letter_name(QUEUE, "unhandled" if kind == "unhandled" else "undeliverable")
    return {one.id: one.body for one in arena.profile.stored(queue)}
