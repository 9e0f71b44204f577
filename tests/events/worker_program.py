"""A worker as its own process, for ``test_run.py``: ``worker_program.py FILE KIND``.

Prints ``ready`` once started and ``running`` when its callback runs; ``finished`` when it ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass

from matador import Envelope, Hooks, Matador, Schema, Topology, event, subscriber


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


def say(text: str) -> None:
    print(text, flush=True)


@subscriber(description="Waits for a moment.", idempotent="yes", name="handle")
async def brief(envelope: Envelope[OrderPlaced]) -> None:
    say("running")
    await asyncio.sleep(0.3)
    say("finished")


@subscriber(description="Never ends.", idempotent="yes", name="handle")
async def endless(envelope: Envelope[OrderPlaced]) -> None:
    say("running")
    await asyncio.Event().wait()


@subscriber(description="Runs in a thread, for a moment.", idempotent="yes", name="handle")
def brief_sync(envelope: Envelope[OrderPlaced]) -> None:
    say("running")
    threading.Event().wait(0.3)
    say("finished")


@subscriber(description="Runs in a thread, for ever.", idempotent="yes", name="handle")
def endless_sync(envelope: Envelope[OrderPlaced]) -> None:
    say("running")
    threading.Event().wait()


class Tell(Hooks):
    async def on_start(self) -> None:
        say("ready")

    def on_stop(self) -> None:
        say("stopped")


def make_app(file: str, kind: str) -> Matador:
    handlers = {one.callback.__name__: one for one in (brief, endless, brief_sync, endless_sync)}
    return Matador(
        f"sqlite:///{file}?lease=30",
        schema=Schema({OrderPlaced: [handlers[kind]]}),
        topology=Topology("shop", queues=["events"]),
        consume_from=["events"],
        hooks=Tell(),
    )


if __name__ == "__main__":
    make_app(sys.argv[1], sys.argv[2]).run()
