"""One queue of SQS and the calls about it.

Calls are batches of up to ten entries. Entries that arrive during a call go into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeAlias

from matador.errors import MatadorError, UnstorableError
from matador.model.message import QueueDepth
from matador.transports.coalescer import Coalescer
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.errors import refused
from matador.transports.sqs.wire import LARGEST, SqsEntry

_MOST = 10  # entries of a batch
_CALLS_AT_ONCE = 16

Outcome: TypeAlias = MatadorError | None
Parameters: TypeAlias = dict[str, Any]


class SqsQueue:
    """One queue of SQS."""

    def __init__(self, client: SqsClient, name: str, url: str, *, fifo: bool) -> None:
        self.name = name
        self.url = url
        self.fifo = fifo
        self._client = client
        # In a FIFO queue, calls must not overlap, to keep the order of sending.
        sends_at_once = 1 if fifo else _CALLS_AT_ONCE
        self._sends: Coalescer[SqsEntry, Outcome] = Coalescer(
            self._send, max_batch=_MOST, at_once=sends_at_once
        )
        self._deletes: Coalescer[str, Outcome] = Coalescer(
            self._delete, max_batch=_MOST, at_once=_CALLS_AT_ONCE
        )
        self._changes: Coalescer[tuple[str, int], Outcome] = Coalescer(
            self._change, max_batch=_MOST, at_once=_CALLS_AT_ONCE
        )

    def send(self, entry: SqsEntry) -> Awaitable[Outcome]:
        """Store an entry."""
        return self._sends.submit(entry)

    def delete(self, handle: str) -> Awaitable[Outcome]:
        """Delete what was received with this receipt handle."""
        return self._deletes.submit(handle)

    def hide(self, handle: str, seconds: int) -> Awaitable[Outcome]:
        """Hide a message from receivers for ``seconds`` from now; 0: make it visible."""
        return self._changes.submit((handle, seconds))

    async def receive(self, limit: int, *, wait: int, lease: int) -> list[dict[str, Any]]:
        """Receive up to ``limit`` messages in botocore's format; wait up to ``wait`` seconds."""
        answer = await self._client.call(
            "receive_message",
            queue=self.name,
            QueueUrl=self.url,
            MaxNumberOfMessages=min(limit, _MOST),
            WaitTimeSeconds=wait,
            VisibilityTimeout=lease,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return answer.get("Messages") or []

    async def attributes(self) -> dict[str, str]:
        """All attributes of the queue."""
        answer = await self._client.call(
            "get_queue_attributes", queue=self.name, QueueUrl=self.url, AttributeNames=["All"]
        )
        return answer.get("Attributes") or {}

    async def depth(self) -> QueueDepth:
        """The approximate number of messages."""
        found = await self.attributes()
        number = "ApproximateNumberOfMessages"
        return QueueDepth(
            ready=int(found.get(number, 0)),
            delayed=int(found.get(f"{number}Delayed", 0)),
            in_flight=int(found.get(f"{number}NotVisible", 0)),
        )

    async def delete_ready(self, count: int) -> int:
        """Receive and delete ``count`` messages or a few more; return their number."""
        deleted = 0
        while deleted < count:
            found = await self.receive(_MOST, wait=1, lease=_MOST)
            deletes = [self.delete(str(one["ReceiptHandle"])) for one in found]
            outcomes = await asyncio.gather(*deletes)
            deleted += outcomes.count(None)
            if None not in outcomes:
                break
        return deleted

    async def purge(self) -> None:
        """Delete all messages."""
        await self._client.call("purge_queue", queue=self.name, QueueUrl=self.url)

    async def drain(self) -> None:
        """Wait until every call has its outcome."""
        for coalescer in (self._sends, self._deletes, self._changes):
            await coalescer.drain()

    # -- batches -----------------------------------------------------------------------------------

    async def _send(self, entries: Sequence[SqsEntry]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for part in _fitting(entries):
            found = await self._batch(
                "send_message_batch", [entry.parameters(str(at)) for at, entry in enumerate(part)]
            )
            if len(part) > 1 and isinstance(found[0], UnstorableError) and len(set(found)) == 1:
                # SQS refused the whole batch because of one entry.
                found = [(await self._send([entry]))[0] for entry in part]
            outcomes += found
        return outcomes

    async def _delete(self, handles: Sequence[str]) -> list[Outcome]:
        return await self._batch(
            "delete_message_batch",
            [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)],
        )

    async def _change(self, changes: Sequence[tuple[str, int]]) -> list[Outcome]:
        return await self._batch(
            "change_message_visibility_batch",
            [
                {"Id": str(at), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
                for at, (handle, seconds) in enumerate(changes)
            ],
        )

    async def _batch(self, operation: str, entries: list[Parameters]) -> list[Outcome]:
        try:
            answer = await self._client.call(
                operation, queue=self.name, QueueUrl=self.url, Entries=entries
            )
        except MatadorError as error:
            return [error] * len(entries)
        failed = {
            str(one.get("Id")): refused(
                str(one.get("Code", "")),
                f"{self.name}: {one.get('Message') or one.get('Code')}",
                queue=self.name,
                sender_fault=bool(one.get("SenderFault", True)),
            )
            for one in answer.get("Failed") or ()
        }
        return [failed.get(entry["Id"]) for entry in entries]


def _fitting(entries: Sequence[SqsEntry]) -> Iterator[list[SqsEntry]]:
    """The entries in order, in batches that fit into one call."""
    part: list[SqsEntry] = []
    size = 0
    for entry in entries:
        if part and size + entry.size > LARGEST:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield part
