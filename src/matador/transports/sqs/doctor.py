"""The findings of ``matador doctor`` about queues: settings that lose or divert messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from matador.errors import QueueNotFoundError
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.transports.sqs.queues import SqsQueues

_DAY = 86_400
_FEW_RECEIVES = 10


async def check(queues: SqsQueues, topology: Topology) -> list[TopologyNote]:
    """The problems of the existing queues of a topology."""
    names = [topology.full_name(queue.name) for queue in topology.queues]
    letters = [name for _, _, name in topology.dead_letter_names()]
    notes: list[TopologyNote] = []
    for name in (*names, *letters):
        try:
            attributes = await (await queues.find(name, make=False)).attributes()
        except QueueNotFoundError:
            continue
        notes += [TopologyNote(name, text) for text in problems(attributes)]
    return notes


def problems(attributes: Mapping[str, str]) -> Iterator[str]:
    """The problems of a queue with these attributes."""
    kept = _whole(attributes.get("MessageRetentionPeriod"))
    if kept is not None and kept < _DAY:
        yield (
            f"SQS deletes messages that have waited for {kept} s; raise MessageRetentionPeriod "
            f"(at most 14 days)"
        )
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        receives = _whole(policy.get("maxReceiveCount"))
    except (ValueError, AttributeError):
        receives = None
    if receives is not None and receives < _FEW_RECEIVES:
        yield (
            f"SQS moves a message to its own dead letters after {receives} receives; raise "
            f"maxReceiveCount of the redrive policy to {_FEW_RECEIVES} or more"
        )
    if delay := _whole(attributes.get("DelaySeconds")):
        yield f"SQS delays every message by {delay} s (DelaySeconds)"


def _whole(text: object) -> int | None:
    return int(str(text)) if str(text).isdecimal() else None
