"""Finds queues by name, creates them from a topology, and recreates deleted ones."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.model.topology import Topology, dead_letter_name
from matador.transports.kit.errors import queue_not_found
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.names import is_fifo, sqs_name
from matador.transports.sqs.options import SqsAddress
from matador.transports.sqs.queue import Outcome, Parameters, SqsQueue

_SHORTEST_KEPT, _LONGEST_KEPT = 60, 1_209_600  # seconds; 14 days


class SqsQueues:
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
        for queue in list(self._found.values()):
            await queue.drain()

    async def find(self, name: str, *, make: bool = True) -> SqsQueue:
        """A queue by its full name. Recreates a declared queue that was deleted.

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
        """Run an operation on a queue. Repeat it once if the queue was deleted meanwhile."""
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
        """Look the queue up again on the next use, because it may have been deleted."""
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
        """Create missing queues, including ``exact`` ones. Existing queues are used unchanged.

        Raises:
            QueueNotFoundError: a queue is missing, and the option ``create`` is off.
            ConfigurationError: a name that is too long for SQS.
        """
        made: dict[str, Parameters] = {}
        for queue, kind, name in topology.dead_letter_names():
            made[name] = _kept_for(topology.letters_of(queue)[kind].ttl)
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            made[name] = _kept_for(queue.message_ttl)
            kinds = topology.kinds_of(queue)
            if "dlq" in kinds or "undeliverable" in kinds:
                kind = "dlq" if "dlq" in kinds else "undeliverable"
                self._redriven[name] = dead_letter_name(name, kind)
        names = {name: sqs_name(name, fifo=self._is_fifo(name)) for name in made}
        self._declared |= made
        for name in made:
            if (known := self._found.get(name)) is not None:
                self.forget(known)
            await self.find(name)
        return [*_notes(topology, names)]


def _kept_for(ttl: float | None) -> Parameters:
    """The retention attribute of a queue; the maximum if SQS does not support ``ttl``."""
    fits = ttl is not None and _SHORTEST_KEPT <= ttl <= _LONGEST_KEPT
    return {"MessageRetentionPeriod": str(math.ceil(ttl) if ttl and fits else _LONGEST_KEPT)}


def _limit_notes(
    name: str, what: str, max_length: int | None, ttl: float | None
) -> Iterator[TopologyNote]:
    if max_length is not None:
        yield TopologyNote(name, "SQS has no length limit: max_length is ignored")
    if ttl is not None and not _SHORTEST_KEPT <= ttl <= _LONGEST_KEPT:
        yield TopologyNote(
            name, f"SQS keeps {what} for 60 s to 14 days: this ttl is ignored, it is 14 days"
        )


def _notes(topology: Topology, names: Mapping[str, str]) -> Iterator[TopologyNote]:
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if queue.exact and names[name] != name:
            yield TopologyNote(name, f"SQS does not allow this name; it is {names[name]!r} there")
        if queue.priorities:
            yield TopologyNote(name, "SQS has no priorities: they are ignored")
        if queue.retention is not None:
            yield TopologyNote(name, "SQS keeps no completed messages: there is no retention")
        yield from _limit_notes(name, "messages", queue.max_length, queue.message_ttl)
    for queue, kind, name in topology.dead_letter_names():
        letters = topology.letters_of(queue)[kind]
        yield from _limit_notes(name, "dead letters", letters.max_length, letters.ttl)
