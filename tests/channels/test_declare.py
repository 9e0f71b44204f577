"""Declaring channels: what the decorators write down, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from matador.channels import (
    ConfigurationError,
    Envelope,
    MessageContext,
    QueueService,
    QueueSettings,
    Settings,
    channel,
    consume,
)
from matador.channels.declare import Consumer, consumers_of

MEMORY = Settings(QueueSettings(type="memory", url="memory://"))


@dataclass(frozen=True)
class Order:
    id: str


@channel("orders")
class Orders:
    """A channel with two consumers, one of them for two names."""

    @consume("created", concurrency=4, timeout=2.0)
    async def created(self, order: Order, ctx: MessageContext) -> None: ...

    @consume("paid")
    @consume("refunded")
    def money(self, envelope: Envelope[Order]) -> None: ...


class TestWhatIsWrittenDown:
    def test_a_consumer_has_typed_metadata(self) -> None:
        """Scenarios: type-safe queue metadata storage; type-safe consume handler registration."""
        orders = Orders()
        assert {one.queue: one for one in consumers_of(orders)} == {
            "orders.created": Consumer("created", 4, {"timeout": 2.0}, "orders", orders.created),
            "orders.paid": Consumer("paid", channel="orders", method=orders.money),
            "orders.refunded": Consumer("refunded", channel="orders", method=orders.money),
        }

    def test_the_class_itself_is_not_changed(self) -> None:
        assert Orders().created.__name__ == "created"

    def test_an_object_is_used_as_it_is(self) -> None:
        @channel("mails")
        class Mails:
            def __init__(self, sender: str) -> None:
                self.sender = sender

            @consume("send")
            async def send(self, to: str) -> None: ...

        (consumer,) = consumers_of(Mails("ada"))
        assert consumer.method.__self__.sender == "ada"  # pyright: ignore[reportFunctionMemberAccess] - bound
        with pytest.raises(ConfigurationError, match="pass an object instead of the class"):
            consumers_of(Mails)

    def test_a_subclass_inherits_consumers(self) -> None:
        @channel("more")
        class More(Orders):
            @consume("shipped")
            async def shipped(self, order: Order) -> None: ...

        assert {one.queue for one in consumers_of(More)} == {
            "more.created",
            "more.paid",
            "more.refunded",
            "more.shipped",
        }
        assert {one.channel for one in consumers_of(Orders)} == {"orders"}


class TestMistakes:
    @pytest.mark.parametrize("name", ["", "a b", "a.b", "-a", 5, None])
    def test_names(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match="the name must"):
            channel(name)
        with pytest.raises(ConfigurationError, match="the name must"):
            consume(name)

    def test_a_class_that_consumes_nothing(self) -> None:
        with pytest.raises(ConfigurationError, match="has no method with @consume"):

            @channel("empty")
            class Empty: ...

    def test_a_class_that_is_no_channel(self) -> None:
        with pytest.raises(ConfigurationError, match="decorate it with @channel"):
            QueueService(MEMORY, channels=[str])

    def test_two_consumers_of_one_name(self) -> None:
        with pytest.raises(ConfigurationError, match="two consumers for 'created'"):
            QueueService(MEMORY, channels=[Orders, Orders()])

    def test_a_parameter_that_nothing_fills(self) -> None:
        @channel("odd")
        class Odd:
            @consume("one")
            async def one(self, order: Order, count: int) -> None: ...

        with pytest.raises(ConfigurationError, match="nothing fills the parameter 'count'"):
            QueueService(MEMORY, channels=[Odd])

    def test_a_generator_runs_nothing(self) -> None:
        @channel("odd")
        class Odd:
            @consume("one")
            async def one(self, order: Order):
                yield order

        with pytest.raises(ConfigurationError, match="would run nothing"):
            QueueService(MEMORY, channels=[Odd])

    def test_a_type_that_cannot_be_read(self) -> None:
        @channel("odd")
        class Odd:
            @consume("one")
            async def one(self, order: int | str | Order | dict[str, int]) -> None: ...

        with pytest.raises(Exception, match="cannot be read from JSON"):
            QueueService(MEMORY, channels=[Odd])

    def test_settings_of_another_type(self) -> None:
        with pytest.raises(ConfigurationError, match="settings must be Settings"):
            QueueService({"queue": {}})  # pyright: ignore[reportArgumentType] - wrong
        with pytest.raises(ConfigurationError, match="settings must be Settings") as found:
            QueueService("amqp://me:hidden@host/")  # pyright: ignore[reportArgumentType] - wrong
        assert "hidden" not in str(found.value)
