"""Passes messages to the transport, tries fallback queues, and reports the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from matador.errors import MatadorError, SendFailedError, SendUnconfirmedError, may_be_stored
from matador.events.fanout import Order, Outgoing, Way
from matador.events.hooks import EnqueueError, EnqueueSuccess, EnqueueWarning, HookSet
from matador.events.plain import Plain
from matador.events.short_forms import TellStored
from matador.model.message import Message, Once
from matador.model.sending import SendResult, Sent
from matador.model.text import storable_text
from matador.transports.base import Deduplicating, Pipelining, Transport
from matador.transports.coalescer import Coalescer

log = logging.getLogger("matador.send")

_CHUNK = 500
_CHUNK_ONCE = 2500  # ids are stored in an index, which costs less for many at a time


class Dispatcher:
    """Sends orders. Events that are sent at the same time share a batch."""

    def __init__(self, transport: Transport, hooks: HookSet) -> None:
        self._transport = transport
        self._hooks = hooks
        self._tellers: dict[tuple[str, str, str], TellStored] | None = (
            None if hooks.short_stored is None else {}
        )
        coalescer: Coalescer[Message, MatadorError | None] = (
            Coalescer(
                transport.send,
                max_batch=transport.send_size,
                at_once=transport.sends_at_once,
            )
            if isinstance(transport, Pipelining)
            else Coalescer(transport.send)
        )
        self.submit = coalescer.submit
        """Begin to send one message; the future has why it was not stored, or None."""

    @property
    def needs_envelopes(self) -> bool:
        """Does a hook have to be told of each envelope that was stored?"""
        return self._tellers is None and self._hooks.on_enqueue_success is not None

    def stored(self, way: Way, sent: Plain) -> SendResult:
        """The result of the only message of an event, which was stored."""
        event_key, subscriber = way.docket.event_key, way.docket.target_subscriber
        if self._tellers is not None:
            names = way.queue, event_key, subscriber
            (self._tellers.get(names) or self._teller(names))(sent)
        return SendResult(event_key, 1, 0, (), (Sent(subscriber, way.queue, sent.id),))

    async def send(self, order: Order) -> SendResult:
        """Send the messages of one event; each awaits its own confirmation."""
        submit, outgoing = self.submit, order.outgoing
        if len(outgoing) == 1 and (message := outgoing[0].message) is not None:  # as most often
            one = outgoing[0]
            try:
                one.error = await submit(message)
            except Exception as error:  # noqa: BLE001 - see as_ours
                one.error = as_ours(error)
            return self._plain_result(order) or await self.report(order)
        waiting = [(one, submit(one.message)) for one in outgoing if one.message is not None]
        for one, outcome in waiting:
            try:
                one.error = await outcome
            except Exception as error:  # noqa: BLE001 - see as_ours
                one.error = as_ours(error)
        return self._plain_result(order) or await self.report(order)

    async def send_all(self, orders: Sequence[Order], once: Once | None = None) -> list[SendResult]:
        """Send many events, in order and in as few round trips as possible.

        With ``once``, messages stored before are not stored again, if the transport supports it.
        """
        ready = [one for order in orders for one in order.outgoing if one.message is not None]
        compares_ids = once is not None and self._transport.capabilities.once
        size = _CHUNK_ONCE if compares_ids else _CHUNK
        for start in range(0, len(ready), size):
            chunk = ready[start : start + size]
            messages = [one.message for one in chunk if one.message is not None]
            for one, error in zip(chunk, await self._send_chunk(messages, once), strict=True):
                one.error = error
        return [self._plain_result(order) or await self.report(order, once) for order in orders]

    async def _send_chunk(
        self, messages: Sequence[Message], once: Once | None
    ) -> Sequence[MatadorError | None]:
        transport = self._transport
        try:
            if once is not None and transport.capabilities.once:
                assert isinstance(transport, Deduplicating), "declared by its capabilities"
                outcomes = await transport.send_once(messages, once)
            else:
                outcomes = await transport.send(messages)
            if len(outcomes) != len(messages):
                raise RuntimeError(f"{len(outcomes)} outcomes for {len(messages)} messages")
            return outcomes
        except Exception as error:  # noqa: BLE001 - see as_ours
            return [as_ours(error)] * len(messages)

    def _plain_result(self, order: Order) -> SendResult | None:
        """The result, if everything was stored and no async hook has to be called."""
        hooks, tellers = self._hooks, self._tellers
        tell = hooks.tell_stored if tellers is None else None
        if tell is None and tellers is None and hooks.on_enqueue_success is not None:
            return None
        sent: list[Sent] = []
        for one in order.outgoing:
            message = one.message
            if message is None or one.error is not None or one.warnings:
                return None
            sent.append(Sent(one.target.subscriber.name, message.queue, message.id))
        if tellers is not None:
            key = order.event.key
            for one, stored in zip(order.outgoing, sent, strict=True):
                names = stored.queue, key, stored.subscriber
                (tellers.get(names) or self._teller(names))(one.sent)
        elif tell is not None:
            name = self._transport.name
            for one, stored in zip(order.outgoing, sent, strict=True):
                tell(EnqueueSuccess(one.envelope, stored.queue, name))
        return SendResult(order.event.key, len(sent), order.skipped, (), tuple(sent))

    def _teller(self, names: tuple[str, str, str]) -> TellStored:
        make, tellers = self._hooks.short_stored, self._tellers
        assert make is not None and tellers is not None  # noqa: PT018 - for the type checker
        made = tellers[names] = make(*names, self._transport.name)
        return made

    async def report(self, order: Order, once: Once | None = None) -> SendResult:
        """The result of an event, after the fallback queues were tried and the hooks were told."""
        hooks = self._hooks
        sent: list[Sent] = []
        errors: list[SendFailedError] = []
        for one in order.outgoing:
            subscriber = one.target.subscriber.name
            queue = one.target.names[0]
            if one.error is not None and one.message is not None and len(one.target.names) > 1:
                queue = await self._fall_back(one, once)
            if one.error is not None:
                errors.append(await self._failed(order, one, queue))
                continue
            sent.append(Sent(subscriber, queue, one.envelope.id))
            for text in one.warnings:
                await self._warn(one, queue, text)
            if hooks.on_enqueue_success is not None:
                await hooks.on_enqueue_success(
                    EnqueueSuccess(one.envelope, queue, self._transport.name)
                )
        return SendResult(order.event.key, len(sent), order.skipped, tuple(errors), tuple(sent))

    async def _fall_back(self, one: Outgoing, once: Once | None) -> str:
        """Try the fallback queues in order. Returns the name of the last one tried."""
        queue = one.target.names[0]
        unknown: list[str] = []
        for next_ in one.target.names[1:]:
            if one.error is None or one.message is None:
                break
            failed, error = queue, one.error
            if may_be_stored(error):
                unknown.append(failed)
            queue = next_
            message = msgspec.structs.replace(one.message, queue=next_)
            if once is None:
                try:
                    one.error = await self.submit(message)
                except Exception as unexpected:  # noqa: BLE001 - see as_ours
                    one.error = as_ours(unexpected)
            else:
                (one.error,) = await self._send_chunk([message], once)
            then = f"{next_} failed too" if one.error is not None else f"sent to {next_} instead"
            text = f"could not send to queue {failed} ({error}); {then}"
            await self._warn(one, next_, text, error)
        if one.error is not None and unknown and not may_be_stored(one.error):
            text = f"{one.error}; {', '.join(unknown)} may have stored it"
            one.error = SendUnconfirmedError(text, cause=one.error)
        return queue

    async def _warn(
        self, one: Outgoing, queue: str, text: str, error: BaseException | None = None
    ) -> None:
        docket = one.envelope.docket
        log.warning("%s for %s: %s", docket.event_key, docket.target_subscriber, text)
        if self._hooks.on_enqueue_warning is not None:
            await self._hooks.on_enqueue_warning(
                EnqueueWarning(one.envelope, queue, self._transport.name, text, error)
            )

    async def _failed(self, order: Order, one: Outgoing, queue: str) -> SendFailedError:
        cause = one.error
        subscriber = one.target.subscriber.name
        was = "may or may not have been" if may_be_stored(cause) else "was not"
        error = SendFailedError(
            f"{order.event.key} {was} sent to {subscriber} ({queue}): {cause}",
            queue=queue,
            subscriber=subscriber,
            cause=cause,
        )
        log.error("%s", storable_text(str(error)))
        if self._hooks.on_enqueue_error is not None:
            await self._hooks.on_enqueue_error(
                EnqueueError(one.envelope, queue, self._transport.name, error)
            )
        return error


def as_ours(error: Exception) -> MatadorError:
    """An error that a transport should not raise: whether it stored anything is unknown."""
    if isinstance(error, MatadorError):
        return error
    return SendUnconfirmedError(f"{type(error).__name__}: {error}", cause=error)
