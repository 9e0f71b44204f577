"""What ``matador doctor`` says about queues: settings that lose messages or take them away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from matador.errors import QueueNotFoundError
from matador.model.message import Finding
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.queues import Queues

_DAY = 86_400
_FEW_RECEIVES = 10


async def examine(client: SqsClient, queues: Queues) -> list[Finding]:
    """Examine the queues of the topologies that were applied."""
    findings = [Finding("server", f"{client.where} answers")]
    for name in queues.declared:
        try:
            attributes = await (await queues.find(name)).attributes()
        except QueueNotFoundError as error:
            findings.append(Finding(name, str(error), "apply the topology", serious=True))
        else:
            findings += about_queue(name, attributes)
    return findings


def about_queue(name: str, attributes: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with one queue."""
    kept = _whole(attributes.get("MessageRetentionPeriod"))
    if kept is not None and kept < _DAY:
        text = f"messages that wait for more than {kept} s are deleted"
        yield Finding(name, text, "raise its MessageRetentionPeriod; 14 days is the most")
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        receives = _whole(policy.get("maxReceiveCount"))
    except (ValueError, AttributeError):
        receives = None
    if receives is not None and receives < _FEW_RECEIVES:
        text = f"SQS moves a message to its own dead letters after it was received {receives} times"
        fix = f"raise maxReceiveCount of its redrive policy to {_FEW_RECEIVES} or more"
        yield Finding(name, text, fix)
    if _whole(attributes.get("DelaySeconds")):
        text = f"every message waits for {attributes['DelaySeconds']} s before it is delivered"
        yield Finding(name, text, "set its DelaySeconds to 0 unless that is meant")


def _whole(text: object) -> int | None:
    return int(str(text)) if str(text).isdecimal() else None
