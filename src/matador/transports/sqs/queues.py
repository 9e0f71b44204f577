"""Queues: found by name, made from a topology, made again when they were deleted; their calls.

Calls are batches of up to ten. What arrives while one is on its way is in the next.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from matador.errors import MatadorError, QueueNotFoundError, UnstorableError
from matador.model.message import QueueDepth, TopologyNote
from matador.model.topology import Topology, dead_letter_name
from matador.transports.coalescer import Coalescer
from matador.transports.kit.errors import queue_not_found
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.errors import refused
from matador.transports.sqs.options import SqsAddress
from matador.transports.sqs.wire import LARGEST, SqsEntry, is_fifo, sqs_name

_MOST = 10  # entries of a batch
_CALLS_AT_ONCE = 16
_SHORTEST_KEPT, _LONGEST_KEPT = 60, 1_209_600  # seconds; 14 days

Outcome: TypeAlias = MatadorError | None
Parameters: TypeAlias = dict[str, Any]


class SqsQueue:
    """One queue of SQS."""

    def __init__(self, client: SqsClient, name: str, url: str, *, fifo: bool) -> None:
        self.name = name
        self.url = url
        self.fifo = fifo
        self._client = client
        # In a FIFO queue the order of sending counts: one call after the other.
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
        """Have nobody receive it for so many seconds from now; 0: give it back."""
        return self._changes.submit((handle, seconds))

    async def receive(self, limit: int, *, wait: int, lease: int) -> list[dict[str, Any]]:
        """Up to ``limit`` messages as botocore has them; waits up to ``wait`` seconds."""
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
        """How many messages there are, approximately."""
        found = await self.attributes()
        number = "ApproximateNumberOfMessages"
        return QueueDepth(
            ready=int(found.get(number, 0)),
            delayed=int(found.get(f"{number}Delayed", 0)),
            in_flight=int(found.get(f"{number}NotVisible", 0)),
        )

    async def delete_ready(self, count: int) -> int:
        """Receive and delete messages, ``count`` or a few more; how many it were."""
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
                # The whole call was refused for the sake of one of them.
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
    """The entries in order, in parts that one call may have."""
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


class Queues:
    """The queues by their full names."""

    def __init__(self, client: SqsClient, address: SqsAddress) -> None:
        self._client = client
        self._address = address
        self._found: dict[str, SqsQueue] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self._declared: dict[str, Parameters] = {}
        self._redriven: dict[str, str] = {}

    async def drain(self) -> None:
        """Wait until every call has its outcome."""
        for queue in self._found.values():
            await queue.drain()

    async def find(self, name: str, *, make: bool = True) -> SqsQueue:
        """A queue by its full name. A declared one that was deleted is made again.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        if (known := self._found.get(name)) is not None:
            return known
        async with self._finding.setdefault(name, asyncio.Lock()):
            if (known := self._found.get(name)) is not None:
                return known
            fifo = self._is_fifo(name)
            short = sqs_name(name, fifo=fifo)
            try:
                answer = await self._client.call("get_queue_url", queue=name, QueueName=short)
            except QueueNotFoundError:
                if name not in self._declared or not (make and self._address.create):
                    raise queue_not_found(name, self._client.where, self._declared) from None
                answer = await self._make(name, short)
            queue = SqsQueue(self._client, name, answer["QueueUrl"], fifo=fifo)
            self._found[name] = queue
        return queue

    async def use(self, name: str, act: Callable[[SqsQueue], Awaitable[Outcome]]) -> Outcome:
        """Do something with a queue; once more if it turns out that it was deleted meanwhile."""
        for again in (True, False):
            try:
                queue = await self.find(name)
                outcome = await act(queue)
            except MatadorError as error:
                return error
            if not isinstance(outcome, QueueNotFoundError) or not again:
                return outcome
            self.forget(queue)
        raise AssertionError("unreachable")

    def forget(self, queue: SqsQueue) -> None:
        """Look for it again: it may have been deleted."""
        if self._found.get(queue.name) is queue:
            del self._found[queue.name]

    def _is_fifo(self, name: str) -> bool:
        return self._address.fifo or is_fifo(name)

    async def _make(self, name: str, short: str) -> Parameters:
        attributes = dict(self._declared[name])
        if self._is_fifo(name):
            attributes["FifoQueue"] = "true"
        if (letters := self._redriven.get(name)) is not None and self._address.max_receives:
            target = (await (await self.find(letters)).attributes()).get("QueueArn")
            policy = {"deadLetterTargetArn": target, "maxReceiveCount": self._address.max_receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        return await self._client.call(
            "create_queue", queue=name, QueueName=short, Attributes=attributes
        )

    # -- topology ----------------------------------------------------------------------------------

    async def declare(self, topology: Topology) -> list[TopologyNote]:
        """Make what is missing; ``exact`` queues, too. What is there is used as it is.

        Raises:
            QueueNotFoundError: a queue is missing, and the option ``create`` is off.
            ConfigurationError: a name that is too long for SQS.
        """
        kept = {"MessageRetentionPeriod": str(_LONGEST_KEPT)}
        made: dict[str, Parameters] = {}
        for _, kind, name in topology.dead_letter_names():
            ttl = topology.dead_letters[kind].ttl
            fits = ttl is not None and _SHORTEST_KEPT <= ttl <= _LONGEST_KEPT
            made[name] = {"MessageRetentionPeriod": str(math.ceil(ttl))} if ttl and fits else kept
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            made[name] = kept
            if topology.dead_letters["undeliverable"].enabled:
                self._redriven[name] = dead_letter_name(name, "undeliverable")
        for name in made:  # before the first is made
            sqs_name(name, fifo=self._is_fifo(name))
        self._declared |= made
        for name in made:
            if (known := self._found.get(name)) is not None:
                self.forget(known)
            await self.find(name)
        return [*_notes(topology, self._names(made))]

    def _names(self, made: Mapping[str, object]) -> dict[str, str]:
        return {name: sqs_name(name, fifo=self._is_fifo(name)) for name in made}


def _notes(topology: Topology, names: Mapping[str, str]) -> Iterator[TopologyNote]:
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if queue.exact and names[name] != name:
            yield TopologyNote(name, f"SQS does not allow this name; it is {names[name]!r} there")
        if queue.priorities:
            yield TopologyNote(name, "SQS has no priorities: they are ignored")
        if queue.retention is not None:
            yield TopologyNote(name, "SQS keeps no completed messages: there is no retention")
    for _, kind, name in topology.dead_letter_names():
        letters = topology.dead_letters[kind]
        if letters.max_length is not None:
            yield TopologyNote(name, "SQS has no length limit: max_length is ignored")
        if letters.ttl is not None and not _SHORTEST_KEPT <= letters.ttl <= _LONGEST_KEPT:
            yield TopologyNote(
                name,
                "SQS keeps dead letters for 60 s to 14 days: this ttl is ignored, it is 14 days",
            )
