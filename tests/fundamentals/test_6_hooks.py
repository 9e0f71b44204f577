"""Chapter 6: hooks hear of everything, and get in the way of nothing."""

from __future__ import annotations

from tests.fundamentals.shop import OrderPlaced

from matador import Envelope, Hooks, Matador, Schema, subscriber
from matador.runtime.facts import Attempt, Received
from matador.runtime.hooks import Proceed
from matador.testing import running


class Alerts(Hooks):
    def __init__(self) -> None:
        self.paged: list[str] = []

    def on_worker_error(self, event: Attempt) -> None:
        if event.subscriber is not None and event.subscriber.importance == "must-investigate":
            self.paged.append(str(event.error))


class Timing(Hooks):
    def __init__(self) -> None:
        self.steps: list[str] = []

    async def on_worker_wrap(self, event: Received, proceed: Proceed) -> None:
        self.steps.append(f"start {event.receiver}")
        await proceed()
        self.steps.append(f"end {event.receiver}")


class Broken(Hooks):
    async def on_worker_success(self, event: object) -> None:
        raise RuntimeError("the metrics server is down")


class Tenant(Hooks):
    def load_universal_metadata(self) -> dict[str, str]:
        return {"tenant": "acme"}


@subscriber(description="Charge the card.", idempotent="yes", importance="must-investigate")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount == 0:
        raise ValueError("nothing to charge")


async def test_several_hooks_listen_to_one_application() -> None:
    alerts, timing = Alerts(), Timing()
    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [charge]}),
        consume_from=["events"],
        hooks=[alerts, Broken(), timing, Tenant()],
    )
    async with running(app) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.send(OrderPlaced("o-2", 0))
        await harness.drain(delayed=False)
        assert len(harness.handled("charge")) == 1, "whatever the broken hook does"
        assert {one.docket.metadata["tenant"] for one in harness.sent} == {"acme"}

    assert alerts.paged == ["nothing to charge"]
    assert timing.steps.count("start charge") == timing.steps.count("end charge") == 2
