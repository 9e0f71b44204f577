"""Properties beside a message, exchanges with bindings, and answers to the sender."""

from __future__ import annotations

from typing import Any

import pytest

from matador.errors import NotConnectedError, QueueNotFoundError, UnsupportedError
from matador.model.capabilities import PropertyName
from matador.model.message import Complete, DeadLetter, Message, Properties, Release, Retry
from matador.model.topology import Binding, Exchange, Topology
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.base import Replying, Routing

_VALUES: dict[PropertyName, str | float] = {
    "routing_key": "orders.paid",
    "reply_to": "somewhere",
    "correlation_id": "ünïcödé-7",
    "type": "OrderPaid",
    "expires_at": 1_900_000_000.25,
}


def _one(name: PropertyName) -> Properties:
    given: dict[str, Any] = {name: _VALUES[name]}
    return Properties(**given)


class RoutingCompliance(ComplianceBase):
    """Each test shows what is declared, and that the rest is refused."""

    # -- properties -------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", list(_VALUES))
    async def test_a_property_arrives_if_declared_and_is_refused_if_not(
        self, name: PropertyName
    ) -> None:
        bench = await self.open()
        sent = bench.message("with", properties=_one(name))
        outcomes = await bench.transport.send([bench.message("plain"), sent])
        assert outcomes[0] is None, "a message without properties is always carried"
        if name not in bench.can.properties:
            assert isinstance(outcomes[1], UnsupportedError)
            assert name in str(outcomes[1])
            assert bodies(await bench.drain(bench.name(), 1)) == ["plain"]
            return
        assert outcomes[1] is None
        deliveries = await bench.drain(bench.name(), 2)
        found = {delivery.body: delivery.properties for delivery in deliveries}
        assert found == {b"plain": None, b"with": _one(name)}

    async def test_properties_leave_no_trace_in_the_headers(self) -> None:
        bench = await self.open()
        carried = self._carried(bench)
        await bench.send(bench.message("a", headers={"mine": "yes"}, properties=carried))
        await bench.send(bench.message("b", headers={"mine": "yes"}))
        first, second = await bench.drain(bench.name(), 2)
        assert set(first.headers) == set(second.headers)

    async def test_properties_survive_a_release_a_retry_and_dead_letters(self) -> None:
        bench = await self.open()
        carried = self._carried(bench)
        await bench.send(bench.message("a", properties=carried))
        subscription = await bench.subscribe(prefetch=1)
        delivery = await bench.receive_one(subscription)
        await bench.settle(Release(delivery.receipt))
        delivery = await bench.receive_one(subscription)
        assert delivery.properties == carried
        await bench.settle(Retry(delivery.receipt, bench.message("a", properties=carried)))
        delivery = await bench.receive_one(subscription)
        assert delivery.properties == carried
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "unreadable"))
        (letter,) = await bench.drain(bench.dead_letters(), 1)
        assert letter.properties == carried
        await bench.send(bench.message("b", properties=carried))
        delivery = await bench.receive_one(subscription)
        successor = bench.message("b", properties=carried)
        await bench.settle(DeadLetter(delivery.receipt, "unhandled", "why", successor))
        (letter,) = await bench.drain(bench.dead_letters("unhandled"), 1)
        assert letter.properties == carried

    def _carried(self, bench: Bench) -> Properties | None:
        """All that is declared; nothing if nothing is."""
        given: dict[str, Any] = {name: _VALUES[name] for name in bench.can.properties}
        return Properties(**given) if given else None

    # -- routing ----------------------------------------------------------------------------------

    def _routed(self) -> Topology:
        plain = self.topology("all", "paid", "other")
        topic, direct, fan = (f"{plain.namespace}.{one}" for one in ("topic", "direct", "fan"))
        return Topology(
            plain.namespace,
            queues=["all", "paid", "other"],
            exchanges=[topic, Exchange(direct, "direct"), Exchange(fan, "fanout")],
            bindings=[
                Binding(topic, "all", "orders.#"),
                Binding(topic, "paid", "orders.*.paid"),
                Binding(topic, "paid", "orders.#.paid"),
                Binding(direct, "paid", "orders.*"),
                Binding(fan, "all"),
                Binding(fan, "paid"),
            ],
        )

    async def _routing(self, bench: Bench) -> Routing | None:
        exchanges, declared = bench.topology.exchanges, bench.can.routing
        texts = " ".join(note.text for note in bench.notes)
        for exchange in exchanges:
            noted = declared or exchange.name in texts
            assert noted, "apply_topology must say that it makes no exchanges"
        first = exchanges[0].name
        return await ability(bench.transport, Routing, declared, lambda one: one.publish(first, []))

    async def test_every_queue_with_a_matching_binding_gets_one(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        topic, direct, fan = (exchange.name for exchange in bench.topology.exchanges)

        async def publish(exchange: str, key: str | None, body: str) -> int:
            properties = None if key is None else Properties(routing_key=key)
            message = bench.message(body, queue="other", properties=properties)
            (outcome,) = await routing.publish(exchange, [message])
            assert isinstance(outcome, int)
            return outcome

        assert await publish(topic, "orders", "none of it") >= 1
        assert await publish(topic, "orders.7.paid", "both") >= 1
        assert await publish(topic, "users.7.paid", "nobody") == 0
        assert await publish(direct, "orders.*", "the same key") >= 1
        assert await publish(direct, "orders.7", "not the same") == 0
        assert await publish(fan, None, "everybody") >= 1
        found = bodies(await bench.drain(bench.name("all"), 3))
        assert found == ["none of it", "both", "everybody"]
        found = bodies(await bench.drain(bench.name("paid"), 3))
        assert found == ["both", "the same key", "everybody"]
        await bench.drain(bench.name("other"), 0)

    async def test_what_is_published_keeps_its_routing_key_and_its_properties(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        assert "routing_key" in bench.can.properties
        carried = self._carried(bench)
        message = bench.message("a", headers={"mine": "yes"}, properties=carried)
        await routing.publish(bench.topology.exchanges[0].name, [message])
        subscription = await bench.subscribe("all", prefetch=1)
        delivery = await bench.receive_one(subscription)
        assert delivery.properties == carried
        assert delivery.headers["mine"] == "yes"
        await bench.settle(Release(delivery.receipt))
        delivery = await bench.receive_one(subscription)
        assert delivery.properties == carried, "given back, it still has its routing key"
        await bench.settle(Complete(delivery.receipt))

    async def test_each_published_message_has_its_outcome(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        topic = bench.topology.exchanges[0].name
        keys = ["orders.1", "users", "orders.2"]
        messages = [bench.message(key, properties=Properties(routing_key=key)) for key in keys]
        first, second, third = await routing.publish(topic, messages)
        assert (first, second, third) == (1, 0, 1)
        assert bodies(await bench.drain(bench.name("all"), 2)) == ["orders.1", "orders.2"]
        (outcome,) = await routing.publish(f"{topic}.unknown", messages[:1])
        assert isinstance(outcome, QueueNotFoundError)
        assert list(await routing.publish(topic, [])) == []

    async def test_exchanges_and_bindings_can_be_applied_again(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        await bench.transport.apply_topology(bench.topology)
        message = bench.message("a", properties=Properties(routing_key="orders"))
        assert list(await routing.publish(bench.topology.exchanges[0].name, [message])) == [1]
        assert bodies(await bench.drain(bench.name("all"), 1)) == ["a"]

    async def test_nothing_is_published_while_disconnected(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        await bench.transport.disconnect()
        with pytest.raises(NotConnectedError):
            await routing.publish(bench.topology.exchanges[0].name, [bench.message("a")])

    # -- answers ----------------------------------------------------------------------------------

    async def test_answers_come_back_to_the_sender(self) -> None:
        bench = await self.open()
        if not isinstance(bench.transport, Replying):
            return  # not an ability that is declared
        transport = await ability(
            bench.transport,
            Replying,
            {"reply_to", "correlation_id"} <= bench.can.properties,
            lambda one: one.reply_address(),
            lambda one: one.replies(),
        )
        if transport is None:
            return
        replies = await transport.replies()
        address = await transport.reply_address()
        assert replies.active
        await bench.send(
            *[
                bench.message(
                    str(n), properties=Properties(reply_to=address, correlation_id=str(n))
                )
                for n in range(3)
            ]
        )
        other = bench if bench.can.in_process else await self.open(topology=bench.topology)
        for question in await other.drain(other.name(), 3):
            assert question.properties is not None
            assert question.properties.reply_to is not None
            answer = Message(
                id="answer",
                queue=question.properties.reply_to,
                body=b"answer to " + question.body,
                headers={"mine": "yes"},
                properties=Properties(correlation_id=question.properties.correlation_id),
            )
            assert list(await other.transport.send([answer])) == [None]
        answers = await bench.receive(replies, 3)
        assert {
            (one.body, one.properties.correlation_id if one.properties else None) for one in answers
        } == {(f"answer to {n}".encode(), str(n)) for n in range(3)}
        assert all(one.headers["mine"] == "yes" for one in answers)
        await bench.nothing_comes(replies)
        await replies.close()
        assert not replies.active
        assert list(await replies.receive(1)) == []
