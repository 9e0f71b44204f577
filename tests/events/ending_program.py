"""A program that ends without a shutdown, or with a hasty one: ``ending_program.py URL HOW``.

Prints ``running`` once its callback runs, and ``left`` when its own code has nothing left to do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matador import Envelope, Matador, Schema, Shutdown, Topology, event
from matador.model.subscriber import Subscriber
from matador.testing import wait_for


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


running = threading.Event()


def say(text: str) -> None:
    print(text, flush=True)


def started() -> None:
    say("running")
    running.set()


async def waits(envelope: Envelope[OrderPlaced]) -> None:
    started()
    await asyncio.Event().wait()


def hangs(envelope: Envelope[OrderPlaced]) -> None:
    started()
    threading.Event().wait()


async def clings(envelope: Envelope[OrderPlaced]) -> None:
    """Does not take being cancelled for an answer."""
    started()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def exits(envelope: Envelope[OrderPlaced]) -> None:
    started()
    sys.exit(3)


def exits_in_a_thread(envelope: Envelope[OrderPlaced]) -> None:
    started()
    sys.exit(3)


def make_app(url: str, callback: Callable[..., Any], shutdown: Shutdown | None = None) -> Matador:
    handle: Subscriber[Any] = Subscriber(
        name="handle", callback=callback, description="Handle it.", idempotent="yes"
    )
    return Matador(
        url,
        schema=Schema({OrderPlaced: [handle]}),
        topology=Topology("shop", queues=["events"]),
        consume_from=["events"],
        shutdown=shutdown,
    )


async def begin(app: Matador) -> None:
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await wait_for(running.is_set)


async def raise_after_start(url: str, callback: Callable[..., Any]) -> None:
    await begin(make_app(url, callback))
    say("left")
    raise RuntimeError("main has failed")


async def hasty_shutdown(url: str, callback: Callable[..., Any]) -> None:
    app = make_app(url, callback, Shutdown(timeout=0, grace=0))
    await begin(app)
    await app.shutdown()
    assert app.transport.state.status == "disconnected"
    say("left")


async def wait_for_ever(url: str, callback: Callable[..., Any]) -> None:
    await begin(make_app(url, callback))
    say("left")
    await asyncio.Event().wait()


def main() -> None:
    url, how = sys.argv[1:]
    match how:
        case "raises":
            asyncio.run(raise_after_start(url, waits))
        case "raises-with-a-thread":
            asyncio.run(raise_after_start(url, hangs))
        case "exits":
            asyncio.run(wait_for_ever(url, exits))
        case "exits-in-a-thread":
            asyncio.run(wait_for_ever(url, exits_in_a_thread))
        case "hasty":
            asyncio.run(hasty_shutdown(url, waits))
        case "hasty-with-a-thread":
            asyncio.run(hasty_shutdown(url, hangs))
        case "clings":
            app = make_app(url, clings, Shutdown(timeout=0.1, grace=0.1))
            with app.producer().sync() as producer:
                producer.send(OrderPlaced("o-1"))
            threading.Thread(target=_interrupt_soon, daemon=True).start()
            app.run()
        case "loop-closed":
            loop = asyncio.new_event_loop()
            loop.run_until_complete(begin(make_app(url, hangs)))
            loop.close()
            say("left")
        case _:
            raise ValueError(how)


def _interrupt_soon() -> None:
    running.wait()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
