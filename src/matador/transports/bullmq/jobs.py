"""Jobs as the server gives them: as deliveries with their receipts, or as stored messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from matador.model.message import (
    REASON_HEADER,
    Delivery,
    MessageState,
    Receipt,
    StoredMessage,
)
from matador.transports.bullmq import wire
from matador.transports.bullmq.names import our_priority
from matador.transports.bullmq.queues import Place


class Hold(NamedTuple):
    """The handle of a delivery: whose job, and the token of its lock.

    ``failed``: it is among the failed jobs. ``due``: it was taken before its time, in ms.
    """

    queue: str
    id: str
    token: str
    failed: bool = False
    due: int = 0


def hold_of(receipt: Receipt) -> Hold | None:
    """The handle of a delivery; a receipt of another transport has none that fits."""
    handle = receipt.handle
    return handle if isinstance(handle, Hold) else None


class Job:
    """The fields of a job."""

    __slots__ = ("_fields", "content", "id")

    def __init__(self, id_: str, fields: Sequence[bytes] | Mapping[bytes, bytes]) -> None:
        self.id = id_
        if not isinstance(fields, Mapping):  # a script gives names and values in turn
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        self._fields = fields
        name = self._fields.get(b"name", b"").decode(errors="replace")
        self.content = wire.read(self._fields.get(b"data", b""), name)

    def number(self, field: bytes) -> int:
        """A number of the job; 0 if it is not there."""
        try:
            return int(self._fields.get(field) or b"0")
        except ValueError:
            return 0

    @property
    def priority(self) -> int | None:
        """As it was sent, or as somebody else gave it."""
        if self.content.id:
            return self.content.priority
        return our_priority(self.number(b"priority"))

    def headers(self, failed: bool) -> dict[str, str | int]:
        """The headers; those of a failed job say why it failed."""
        headers = dict(self.content.headers)
        if failed:
            headers[REASON_HEADER] = self._fields.get(b"failedReason", b"").decode(errors="replace")
        return headers

    def count(self, failed: bool) -> int:
        """How often it was handed out, the present time included."""
        # A job stalls when its worker vanishes; one that is given back or retried does not.
        return self.number(b"matador-taken") if failed else self.number(b"stc") + 1

    def delivery(self, name: str, place: Place, token: str, due: int = 0) -> Delivery:
        """The job as a delivery."""
        failed = place.kind is not None
        count = self.count(failed)
        receipt = Receipt(
            name,
            Hold(place.queue, self.id, token, failed, due),
            count,
            count > 1,
            self.priority,
            self.content.ordering_key,
        )
        return Delivery(self.content.body, self.headers(failed), receipt)

    def stored(self, name: str, place: Place, state: MessageState) -> StoredMessage:
        """The job as it is looked at."""
        failed = place.kind is not None
        sent = self.number(b"timestamp")
        count = self.count(failed)
        delayed = state == "delayed"
        return StoredMessage(
            position=position_of(sent, self.id),
            id=self.content.id or self.id,
            queue=name,
            body=self.content.body,
            headers=self.headers(failed),
            state=state,
            stored_at=_time(sent),
            due_at=_time(sent + self.number(b"delay")) if delayed else None,
            delivery_count=count if failed or state == "in-flight" else count - 1,
            priority=self.priority,
            ordering_key=self.content.ordering_key,
        )


def position_of(sent: int, id_: str) -> str:
    """The position of a job: when it was sent, and its id."""
    return f"{sent}-{id_}"


def parts_of(position: str) -> tuple[int, str]:
    """When a job was sent, and its id."""
    sent, _, id_ = position.partition("-")
    return (int(sent) if sent.isdecimal() else 0), id_


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
