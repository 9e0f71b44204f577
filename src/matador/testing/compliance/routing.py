"""Message properties, exchanges with bindings, and replies to the sender."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from matador.errors import QueueNotFoundError, TransportClosedError, UnsupportedError
from matador.model.capabilities import PropertyName
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Properties,
    Release,
    Retry,
)
from matador.model.topology import (
    DEAD_LETTER_KINDS,
    Binding,
    DeadLetters,
    Exchange,
    Topology,
    WorkQueue,
)
from matador.testing.compliance.base import ComplianceBase, ability
from matador.testing.compliance.bench import Bench, bodies
from matador.testing.wait import wait_for
from matador.transports.base import Replying, Routing, Subscription

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
    """Each test checks the declared abilities, and that others are refused."""

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
        """The declared properties; None if there are none."""
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
        none = 0 if self.counts_queues else 1
        assert await publish(topic, "users.7.paid", "nobody") == none
        assert await publish(direct, "orders.*", "the same key") >= 1
        assert await publish(direct, "orders.7", "not the same") == none
        assert await publish(fan, None, "everybody") >= 1
        found = bodies(await bench.drain(bench.name("all"), 3))
        assert self._in_order(found) == self._in_order(["none of it", "both", "everybody"])
        found = bodies(await bench.drain(bench.name("paid"), 3))
        assert self._in_order(found) == self._in_order(["both", "the same key", "everybody"])
        await bench.drain(bench.name("other"), 0)

    def _in_order(self, found: list[str]) -> list[str]:
        """Messages with several routing keys, of several exchanges: comparable."""
        return found if self.orders_without_keys else sorted(found)

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
        assert (first, second, third) == (1, 0 if self.counts_queues else 1, 1)
        found = bodies(await bench.drain(bench.name("all"), 2))
        assert self._in_order(found) == ["orders.1", "orders.2"]
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
        with pytest.raises(TransportClosedError):
            await routing.publish(bench.topology.exchanges[0].name, [bench.message("a")])

    async def test_bindings_of_another_transport_count_at_once(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None or bench.can.in_process:
            return
        topic = bench.topology.exchanges[0].name
        new = Message("m", "", b"new", properties=Properties(routing_key="new.key"))
        none = 0 if self.counts_queues else 1
        assert list(await routing.publish(topic, [new])) == [none]
        more = Topology(
            bench.topology.namespace,
            queues=["more"],
            exchanges=[topic],
            bindings=[Binding(topic, "more", "new.*")],
        )
        other = await self.open(topology=more)
        assert list(await routing.publish(topic, [new])) == [1], "others may bind at any time"
        assert bodies(await other.drain(other.name("more"), 1)) == ["new"]
        assert isinstance(other.transport, Routing)
        await other.transport.unbind(topic, other.name("more"), "new.*")
        assert list(await routing.publish(topic, [new])) == [none]
        await other.drain(other.name("more"), 0)

    async def test_a_topology_may_have_exchanges_only(self) -> None:
        bench = await self.open(topology=self._routed())
        if await self._routing(bench) is None:
            return
        topic = bench.topology.exchanges[0].name
        publisher = bench.transport if bench.can.in_process else await self.make()
        await publisher.connect()
        await publisher.apply_topology(Topology("publisher", exchanges=[topic]))
        assert isinstance(publisher, Routing)
        message = Message("m", "", b"a", properties=Properties(routing_key="orders"))
        assert list(await publisher.publish(topic, [message])) == [1]
        (delivery,) = await bench.drain(bench.name("all"), 1)
        assert (delivery.body, delivery.id) == (b"a", "m")

    async def test_several_publishers_store_everything_once_in_each_queue(self) -> None:
        bench = await self.open(topology=self._routed())
        if await self._routing(bench) is None:
            return
        fan = bench.topology.exchanges[2].name
        publishers = [bench.transport]
        while len(publishers) < 3:
            other = bench if bench.can.in_process else await self.open(topology=bench.topology)
            publishers.append(other.transport)

        async def publish(publisher: object, part: int) -> None:
            assert isinstance(publisher, Routing)
            for start in range(0, 60, 20):
                texts = [f"{part}-{number}" for number in range(start, start + 20)]
                outcomes = await publisher.publish(fan, [bench.message(text) for text in texts])
                assert all(isinstance(one, int) and one >= 1 for one in outcomes)

        await asyncio.gather(*(publish(one, part) for part, one in enumerate(publishers)))
        expected = {f"{part}-{number}" for part in range(3) for number in range(60)}
        for queue in ("all", "paid"):
            found = bodies(await bench.drain(bench.name(queue), 180))
            assert set(found) == expected
            for part in range(3):
                mine = [text for text in found if text.startswith(f"{part}-")]
                assert mine == [f"{part}-{number}" for number in range(60)], "in order"

    # -- queues that come and go ------------------------------------------------------------------

    async def test_a_deleted_queue_gets_nothing_more(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            await ability(
                bench.transport,
                Routing,
                False,
                lambda one: one.delete_queue(bench.name("all")),
                lambda one: one.unbind("exchange", bench.name("all"), "#"),
            )
            return
        fan = bench.topology.exchanges[2].name
        await routing.publish(fan, [bench.message("before")])
        await routing.delete_queue(bench.name("all"))
        await routing.delete_queue(bench.name("all"))
        assert list(await routing.publish(fan, [bench.message("after")])) == [1]
        assert bodies(await bench.drain(bench.name("paid"), 2)) == ["before", "after"]
        (outcome,) = await bench.transport.send([bench.message("sent", queue="all")])
        assert isinstance(outcome, QueueNotFoundError)
        with pytest.raises(QueueNotFoundError):
            await bench.subscribe("all")
        await bench.transport.apply_topology(bench.topology)
        await bench.drain(bench.name("all"), 0)
        await routing.publish(fan, [bench.message("again")])
        assert bodies(await bench.drain(bench.name("all"), 1)) == ["again"]

    async def test_an_unbound_queue_gets_nothing_more(self) -> None:
        bench = await self.open(topology=self._routed())
        if (routing := await self._routing(bench)) is None:
            return
        topic = bench.topology.exchanges[0].name
        message = bench.message("a", properties=Properties(routing_key="orders.7.paid"))
        await routing.unbind(topic, bench.name("paid"), "orders.*.paid")
        await routing.publish(topic, [message])
        await bench.drain(bench.name("paid"), 1)  # its other pattern still matches
        await routing.unbind(topic, bench.name("paid"), "orders.#.paid")
        await routing.unbind(topic, bench.name("paid"), "orders.#.paid")
        await routing.publish(topic, [message])
        await bench.drain(bench.name("paid"), 0)

    def _temporary(self, expires: float) -> Topology:
        plain = self.topology("temporary")
        topic = f"{plain.namespace}.topic"
        return Topology(
            plain.namespace,
            queues=[WorkQueue("temporary", expires=expires)],
            exchanges=[topic],
            bindings=[Binding(topic, "temporary", "#")],
        )

    async def test_a_temporary_queue_is_deleted_when_nobody_uses_it(self) -> None:
        bench = await self.open(topology=self._temporary(1.0))
        if (routing := await self._routing(bench)) is None:
            assert bench.noted(bench.name()), "apply_topology must say that it stays"
            return
        topic = bench.topology.exchanges[0].name

        async def subscribed() -> Subscription | None:
            await bench.transport.apply_topology(bench.topology)
            try:
                return await bench.subscribe()
            except QueueNotFoundError:  # a busy machine may need longer than it lives unused
                return None

        subscription = await wait_for(subscribed, timeout=self.patience)
        assert subscription is not None
        assert list(await routing.publish(topic, [bench.message("a")])) == [1]
        await bench.complete([await bench.receive_one(subscription)])
        until = asyncio.get_running_loop().time() + 2.5  # far longer than it lives unused
        while asyncio.get_running_loop().time() < until:
            await bench.nothing_comes(subscription)
        assert list(await routing.publish(topic, [bench.message("b")])) == [1], "it is used"
        await bench.complete([await bench.receive_one(subscription)])
        await subscription.close()

        async def unbound() -> bool:
            if self.counts_queues:
                return list(await routing.publish(topic, [bench.message("c")])) == [0]
            outcomes = await bench.transport.send([bench.message("c")])
            return isinstance(outcomes[0], QueueNotFoundError)

        await wait_for(unbound, timeout=self.patience + 10, message="the queue deleted")
        with pytest.raises(QueueNotFoundError):
            await bench.subscribe()
        await bench.transport.apply_topology(bench.topology)
        await bench.drain(bench.name(), 0)

    async def test_a_temporary_queue_has_no_dead_letters_unless_they_are_asked_for(self) -> None:
        asked = self._temporary(60.0)
        asked = Topology(
            asked.namespace,
            queues=asked.queues,
            dead_letters=DeadLetters(dlq=True),
            exchanges=asked.exchanges,
        )
        for topology, kinds in ((self._temporary(60.0), []), (asked, ["dlq"])):
            bench = await self.open(topology=topology)
            if await self._routing(bench) is None:
                return
            await bench.send("a")
            subscription = await bench.subscribe(prefetch=1)
            delivery = await bench.receive_one(subscription)
            kept: list[str] = []
            for kind in DEAD_LETTER_KINDS:
                letter = DeadLetter(delivery.receipt, kind, "why")
                (outcome,) = await bench.transport.settle([letter])
                if outcome is None:
                    kept.append(kind)
                    break
                assert isinstance(outcome, QueueNotFoundError)
            assert kept == kinds
            if not kept:
                await bench.complete([delivery])
            await subscription.close()
            assert isinstance(bench.transport, Routing)
            await bench.transport.delete_queue(bench.name())
        assert len(await bench.drain(bench.dead_letters("dlq"), 1)) == 1, "dead letters stay"

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

    async def _asking(self, bench: Bench) -> Replying | None:
        carried = {"reply_to", "correlation_id"} <= bench.can.properties
        if not isinstance(bench.transport, Replying) or not carried:
            return None
        return bench.transport

    async def test_thousands_of_answers_arrive(self) -> None:
        bench = await self.open()
        if (asking := await self._asking(bench)) is None:
            return
        number = 2_000
        replies, address = await asking.replies(), await asking.reply_address()
        properties = [
            Properties(reply_to=address, correlation_id=str(n), transient=True)
            for n in range(number)
        ]
        await bench.send(*[bench.message("q", properties=one) for one in properties])
        other = bench if bench.can.in_process else await self.open(topology=bench.topology)
        server = await other.subscribe(prefetch=500)
        found: set[str] = set()

        async def answer() -> None:
            left = number
            while left:
                questions = await server.receive(100)
                answers = [_answer(question, b"a") for question in questions]
                assert not any(await other.transport.send(answers))
                await other.complete(questions)
                left -= len(questions)

        async def collect() -> None:
            while len(found) < number:
                for delivery in await replies.receive(500):
                    assert delivery.properties is not None
                    assert delivery.properties.correlation_id is not None
                    assert delivery.properties.correlation_id not in found, "each once"
                    found.add(delivery.properties.correlation_id)

        async with asyncio.timeout(self.patience + 50), asyncio.TaskGroup() as both:
            both.create_task(answer())
            both.create_task(collect())
        await bench.nothing_comes(replies)

    async def test_an_answer_to_somebody_who_is_gone_is_dropped(self) -> None:
        bench = await self.open()
        if await self._asking(bench) is None or bench.can.in_process:
            return
        other = await self.open(topology=bench.topology)
        assert isinstance(other.transport, Replying)
        address = await other.transport.reply_address()
        question = Properties(reply_to=address, correlation_id="c", transient=True)
        await other.send(other.message("q", properties=question))
        await other.transport.disconnect()
        (delivery,) = await bench.drain(bench.name(), 1)
        gone = _answer(delivery, b"to nobody")
        outcomes = await bench.transport.send([gone, bench.message("next")])
        assert list(outcomes) == [None, None]
        assert bodies(await bench.drain(bench.name(), 1)) == ["next"]
        if bench.can.depth:
            with pytest.raises(QueueNotFoundError):  # nothing is left behind
                await bench.transport.subscribe(gone.queue, prefetch=1)

    async def test_an_answer_after_a_cancelled_receive_is_not_lost(self) -> None:
        bench = await self.open()
        if (asking := await self._asking(bench)) is None:
            return
        replies, address = await asking.replies(), await asking.reply_address()
        await bench.nothing_comes(replies)
        asked = Properties(reply_to=address, correlation_id="c", transient=True)
        await bench.send(bench.message("q", properties=asked))
        (delivery,) = await bench.drain(bench.name(), 1)
        await bench.transport.send([_answer(delivery, b"one"), _answer(delivery, b"two")])
        assert bodies(await bench.receive(replies, 2)) == ["one", "two"]


def _answer(question: Delivery, body: bytes) -> Message:
    asked = question.properties
    assert asked is not None
    assert asked.reply_to is not None
    properties = Properties(correlation_id=asked.correlation_id, transient=True)
    return Message("", asked.reply_to, body, properties=properties)
