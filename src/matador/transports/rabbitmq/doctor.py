"""What ``matador doctor`` reports about a RabbitMQ server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matador.errors import QueueNotFoundError
from matador.model.message import Finding
from matador.transports.rabbitmq.delays import lost_queue
from matador.transports.rabbitmq.management import Node
from matador.transports.rabbitmq.session import AmqpSession

_OLDEST = (3, 10)


async def examine(session: AmqpSession) -> Sequence[Finding]:
    """Look at the server; changes nothing."""
    version, blocked = session.consuming.server_version, session.publishing.blocked
    findings = [Finding("server", f"RabbitMQ {version}", _upgrade(version))]
    findings += about_cluster(await session.management.nodes())
    if not session.management.is_asked:
        text = "not looked at: the management plugin is asked only if management= says so"
        findings.append(Finding("cluster", text))
    if blocked is not None:
        fix = "free memory or disk on the server, or raise its limits"
        text = f"RabbitMQ blocks publishers: {blocked}"
        findings.append(Finding("alarms", text, fix, serious=True))
    lost = lost_queue(session.address.delay_prefix)
    try:
        async with session.channel() as channel:
            waiting = await channel.count_ready(lost)
    except QueueNotFoundError:
        waiting = 0
    if waiting:
        text = f"{waiting:,} delayed messages could not be delivered: their queue was deleted"
        findings.append(Finding("delays", text, f"they are in the queue {lost}"))
    return findings


def about_cluster(nodes: Sequence[Node] | None) -> Iterator[Finding]:
    """What only the management plugin knows about the nodes."""
    if nodes is None:
        return
    down = [node.name for node in nodes if not node.running]
    if down:
        text = f"not running: {', '.join(down)}"
        yield Finding("cluster", text, "start them: quorum queues need a majority", serious=True)
    split = [node.name for node in nodes if node.partitions]
    if split:
        text = f"network partition between: {', '.join(split)}"
        yield Finding(
            "cluster", text, "restart the nodes whose data may be discarded", serious=True
        )
    for kind, word in (("mem_alarm", "memory"), ("disk_free_alarm", "disk")):
        short = [node.name for node in nodes if getattr(node, kind)]
        if short:
            text = f"low on {word}, publishers are blocked: {', '.join(short)}"
            yield Finding("alarms", text, f"free {word} there, or raise its limit", serious=True)
    if not down and not split:
        yield Finding("cluster", f"{len(nodes)} of {len(nodes)} servers running")


def _upgrade(version: str) -> str:
    numbers = version.split(".")[:2]
    known = all(number.isdecimal() for number in numbers)
    if known and tuple(map(int, numbers)) < _OLDEST:
        return "delays need RabbitMQ 3.10 or newer, whose quorum queues have expiring messages"
    return ""
