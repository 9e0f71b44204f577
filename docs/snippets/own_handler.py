"""A way in of your own: raw messages with retries on the delivery runtime, without events."""

import asyncio
from uuid import uuid4

# --8<-- [start:handler]
from matador.model.message import Complete, Delivery, Message, Retry
from matador.runtime.settle import Outcome, kept_as_it_arrived

MOST_ATTEMPTS = 3


class Pinger:
    """Pings the host in the body of each message. A failed ping is retried twice."""

    async def process(self, delivery: Delivery) -> Outcome:
        receipt, attempt = delivery.receipt, int(delivery.headers.get("attempt", 1))
        try:
            await ping(delivery.body.decode(), attempt)
        except ConnectionError as error:
            if attempt == MOST_ATTEMPTS:
                return self.give_up(delivery, str(error))
            headers = {"attempt": attempt + 1}
            again = Message(new_id(), receipt.queue, delivery.body, headers, delay=0.01 * attempt)
            return Outcome(receipt, Retry(receipt, again))
        return Outcome(receipt, Complete(receipt))

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        return kept_as_it_arrived(delivery.receipt, "undeliverable", reason)


# --8<-- [end:handler]


def new_id() -> str:
    return str(uuid4())


async def ping(host: str, attempt: int) -> None:
    if host == "down" or (host == "slow" and attempt == 1):
        raise ConnectionError(f"{host} does not answer")
    print(f"{host} answers in attempt {attempt}")


# --8<-- [start:run]
from matador.model.topology import Topology
from matador.runtime.worker import DeliveryWorker
from matador.testing import wait_for
from matador.transports import MemoryTransport


async def main() -> None:
    transport = MemoryTransport()  # any transport works
    await transport.connect()
    await transport.apply_topology(Topology("net", queues=["pings"]))
    hosts = ("up", "slow", "down")
    await transport.send([Message(new_id(), "net.pings", host.encode()) for host in hosts])

    worker = DeliveryWorker(transport)
    await worker.start(Pinger(), {"net.pings": 10})  # at most ten at once
    await wait_for(lambda: not transport.messages("net.pings"))
    await worker.stop_receiving()
    await worker.finish()
    await worker.close()
    for letter in transport.dead_letters("net.pings"):
        print(f"dead letter: {letter.reason}")
    await transport.disconnect()


# --8<-- [end:run]

if __name__ == "__main__":
    asyncio.run(main())
