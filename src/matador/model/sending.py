"""The options and the result of a send."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from matador.errors import SendFailedError
from matador.model.options import Seconds
from matador.model.text import storable_text

SendErrors: TypeAlias = Literal["raise", "report"]
"""What to do if messages were not stored: ``raise`` a ``SendFailedError``, or only ``report`` them
in ``SendResult.errors``."""

_errors_of = operator.attrgetter("errors")
_MOST_REASONS = 3
_LONGEST_REASON = 300


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one event in ``send_many``: those of ``send``, and three more.

    Attributes:
        metadata: a mapping, or an instance of the type of the event's metadata.
        id: the id of the envelope if ``subscribers`` names a single one; otherwise, the ids of all
            envelopes are derived from it. Sending the event again yields the same ids.
        subscribers: the names of the subscribers to send to; None: all of them.
        queue: the queue to send to, instead of the subscribers' own queues.

    Example:
        >>> await app.send_many([(OrderPlaced("1", 5), SendOptions(delay=30)), OrderPlaced("2", 7)])
    """

    metadata: object = None
    correlation_id: str | None = None
    delay: Seconds | None = None
    before: Any = None
    priority: int | None = None
    ordering_key: str | None = None
    id: str | None = None
    subscribers: tuple[str, ...] | None = None
    queue: str | None = None


class SentTo(msgspec.Struct, frozen=True, gc=False):
    """One stored message: its subscriber, its queue, its id, and the transport that stored it."""

    subscriber: str
    queue: str
    id: str
    transport: str


class SendResult(msgspec.Struct, frozen=True):
    """The result of sending one event.

    Attributes:
        event_key: the key of the event.
        sent: how many subscribers it was sent to.
        skipped: how many subscribers were not enabled.
        errors: an error for each message that was not stored, with its ``subscriber`` and
            ``queue``. With ``send_errors="raise"``, the default, a result with errors is raised.
        messages: the stored messages.

    Example:
        >>> result = await app.send(OrderPlaced("1", 5))
        >>> result.sent, result.skipped, result.ok
        (2, 0, True)
    """

    event_key: str
    sent: int
    skipped: int
    errors: tuple[SendFailedError, ...] = ()
    messages: tuple[SentTo, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was stored."""
        return not self.errors

    def raise_for_errors(self) -> SendResult:
        """Raise ``SendFailedError`` if there are errors; otherwise return the result itself.

        ``send`` does this unless the application has ``send_errors="report"``.

        Raises:
            SendFailedError: with this result.
        """
        raise_for_errors([self])
        return self


def raise_for_errors(results: Sequence[SendResult]) -> None:
    """Raise one error if any of the results of a call has errors.

    Raises:
        SendFailedError: says how many messages failed, and the first reasons.
    """
    if not any(map(_errors_of, results)):  # the fastest check for thousands of results
        return
    errors = [error for result in results for error in result.errors]
    sent = sum(result.sent for result in results)
    failing = [result for result in results if result.errors]
    what = failing[0].event_key if len(results) == 1 else f"{len(failing)} of {len(results)} events"
    first = errors[0]
    raise SendFailedError(
        f"{what}: {_counted(errors, sent)}: {_reasons(errors)}",
        queue=first.queue,
        subscriber=first.subscriber,
        cause=first.__cause__,
        results=results,
    )


def _counted(errors: Sequence[SendFailedError], sent: int) -> str:
    total = len(errors) + sent
    unknown = sum(error.unknown for error in errors)
    counts = (
        (len(errors) - unknown, "could not be stored"),
        (unknown, "may or may not be stored (the outcome is unknown)"),
    )
    of = f"of {total} messages" if total > 1 else "of 1 message"
    said = [f"{number} {of} {what}" for number, what in counts if number]
    were = "was" if sent == 1 else "were"
    return ", ".join([*said, f"{sent} {were} stored"] if sent else said)


def _reasons(errors: Sequence[SendFailedError]) -> str:
    texts = [storable_text(str(error), _LONGEST_REASON) for error in errors[:_MOST_REASONS]]
    more = len(errors) - len(texts)
    return "; ".join([*texts, f"and {more} more"] if more else texts)
