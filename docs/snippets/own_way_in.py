"""A way in of your own: raw messages that run through the same pipeline as events."""

import asyncio
from uuid import uuid4

# --8<-- [start:way]
from matador import Hooks, RetryLater, RetryPolicy, StandardRetryPolicy, Topology
from matador.model.message import Delivery, Message
from matador.model.topology import DeadLetterKind
from matador.runtime.facts import Received
from matador.runtime.way import Call, Failure, RefusalKind, Route, Scope, WayIn, Work


class Pings(WayIn):
    """Pings the host in the body of each message."""

    route = Route(handler="ping", idempotent="yes", timeout=5)
    retries = StandardRetryPolicy(max_attempts=3, base_delay=0.01)

    def read(self, delivery: Delivery) -> Work:
        attempt = delivery.headers.get("attempt")
        return Work(delivery, self.route, delivery.id, attempt if isinstance(attempt, int) else 1)

    def call(self, work: Work, scope: Scope | None) -> Call:
        return ping(work.delivery.body.decode(), work.attempt)

    def policy(self, work: Work) -> RetryPolicy:
        return self.retries

    def successor(self, work: Work, failure: Failure) -> Message:
        queue, body, decision = work.delivery.receipt.queue, work.delivery.body, failure.decision
        if isinstance(decision, RetryLater):
            headers = {"attempt": work.attempt + 1}
            return Message(work.id, queue, body, headers, delay=decision.delay)
        return Message(work.id, queue, body)  # a dead letter

    def fact(self, work: Work) -> Received:
        return Received("message", work.id, "ping", "ping", "", work.delivery, work.attempt, 0.0)

    def unread(self, delivery: Delivery) -> Received:
        return self.fact(self.read(delivery))

    def label(self, work: Work) -> str:
        return f"ping {work.id}"

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind:
        return "undeliverable"


# --8<-- [end:way]


def new_id() -> str:
    return str(uuid4())


async def ping(host: str, attempt: int) -> None:
    if host == "down" or (host == "slow" and attempt == 1):
        raise ConnectionError(f"{host} does not answer")
    print(f"{host} answers in attempt {attempt}")


# --8<-- [start:service]
from matador.runtime.connection import Connection
from matador.runtime.service import Service
from matador.testing import wait_for
from matador.transports import MemoryTransport
from matador.transports.base import Transport


class Pinger(Service):
    """Has start, shutdown, pause, hooks, health and metrics, like every class of Matador."""

    def __init__(self, transport: Transport, hooks: list[Hooks]) -> None:
        super().__init__("Pinger", Connection(transport, "Pinger"), hooks=hooks)

    async def _open(self, transport: Transport) -> None:
        await transport.apply_topology(Topology("net", queues=["pings"]))
        await self._consume(transport, Pings(), {"net.pings": 10})  # at most ten at once


# --8<-- [end:service]


async def main() -> None:
    transport = MemoryTransport()  # any transport works
    async with Pinger(transport, hooks=[]) as pinger:
        hosts = ("up", "slow", "down")
        await transport.send([Message(new_id(), "net.pings", host.encode()) for host in hosts])
        await wait_for(lambda: not transport.messages("net.pings"))
        metrics = pinger.metrics()
        print(f"{metrics.messages_succeeded} answer, {metrics.messages_dead_lettered} does not")
    for letter in transport.dead_letters("net.pings"):
        print(f"dead letter: {letter.reason}")


if __name__ == "__main__":
    asyncio.run(main())
