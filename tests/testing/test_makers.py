"""The makers make what the rest of Matador accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.jobs import ActiveJob
from matador.pubsub import MessageContext
from matador.rpc import RpcContext
from matador.runtime.context import Context
from matador.testing import (
    make_context,
    make_delivery,
    make_docket,
    make_envelope,
    make_job,
    make_message,
    make_message_context,
    make_receipt,
    make_rpc_context,
)


def test_an_envelope_says_what_it_was_told() -> None:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    envelope = make_envelope(
        {"order_id": "o-1"},
        id="m-1",
        event_key="order.placed",
        subscriber="email-receipt",
        attempts=2,
        created_at=created,
        correlation_id="c-1",
        metadata={"tenant": 7},
    )
    assert (envelope.id, envelope.data) == ("m-1", {"order_id": "o-1"})
    docket = envelope.docket
    assert (docket.event_key, docket.target_subscriber) == ("order.placed", "email-receipt")
    assert (docket.attempts, docket.created_at) == (2, created)
    assert (docket.correlation_id, docket.metadata) == ("c-1", {"tenant": 7})


def test_a_docket_can_be_given_whole() -> None:
    docket = make_docket(last_error="boom", attempts=4)
    assert make_envelope(1, docket=docket).docket is docket
    assert docket.last_error == "boom"


def test_envelopes_and_messages_have_ids_of_their_own() -> None:
    assert make_envelope(1).id != make_envelope(1).id
    assert make_message().id != make_message().id


def test_a_docket_is_made_now() -> None:
    before = datetime.now(UTC)
    assert before <= make_docket().created_at <= datetime.now(UTC)


def test_redelivered_follows_from_the_count() -> None:
    assert not make_receipt().redelivered
    assert make_receipt(delivery_count=2).redelivered
    assert not make_receipt(delivery_count=2, redelivered=False).redelivered


def test_a_delivery_has_a_receipt() -> None:
    receipt = make_receipt(queue="shop.events")
    delivery = make_delivery(b"x", headers={"h": 1}, receipt=receipt)
    assert (delivery.body, delivery.headers, delivery.receipt) == (b"x", {"h": 1}, receipt)
    assert make_delivery().receipt.delivery_count == 1


CONTEXTS: list[Any] = [
    make_context(make_envelope(1, id="m-1", attempts=2, metadata={"tenant": "7"})),
    make_job(1, id="m-1", attempt=2, metadata={"tenant": "7"}),
    make_rpc_context(id="m-1", attempt=2, metadata={"tenant": "7"}),
    make_message_context(id="m-1", attempt=2, metadata={"tenant": "7"}),
]


@pytest.mark.parametrize("ctx", CONTEXTS, ids=lambda ctx: type(ctx).__name__)
async def test_every_context_is_one_that_a_handler_can_use(ctx: Any) -> None:
    assert (ctx.id, ctx.attempt, ctx.metadata["tenant"]) == ("m-1", 2, "7")
    assert (ctx.correlation_id, ctx.deadline, ctx.lease_lost) == (None, None, False)
    assert await ctx.io("charge", lambda: 5) == 5
    assert await ctx.all([("a", lambda: 1), ("b", lambda: 2)]) == [1, 2]


async def test_a_job_of_a_test_reports_its_progress_to_nobody() -> None:
    async def handle(job: ActiveJob[dict[str, str]]) -> str:
        await job.update_progress(50)
        return job.data["to"]

    assert await handle(make_job({"to": "ada"})) == "ada"


async def test_a_call_and_a_message_of_a_test() -> None:
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    call = make_rpc_context("add", deadline=deadline, correlation_id="c-1", wants_reply=False)
    assert isinstance(call, RpcContext)
    assert (call.command, call.deadline, call.wants_reply) == ("ADD", deadline, False)
    assert (call.correlation_id, call.attempts) == ("c-1", 1)
    message = make_message_context("orders.created", exchange="shop", queue="analytics")
    assert isinstance(message, MessageContext)
    assert isinstance(message, Context)
    assert (message.routing_key, message.exchange) == ("orders.created", "shop")
    assert message.queue == "analytics"
    await message.ack()
    with pytest.raises(ConfigurationError, match="mode='manual'"):
        message.nack()
