"""The counters of RPC and pub/sub as metrics: by queue or exchange, and status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from matador.messages.counters import MessageCounters

if TYPE_CHECKING:
    from matador.rpc import RpcClientMetrics

Counted: TypeAlias = tuple[str, str, str, str, Mapping[str, int]]
"""A metric: its name, its help, a label with its value, and the numbers by status."""


def counting(source: object) -> Callable[[], Iterable[Counted]] | None:
    """What reads the counters of a server, a client, a publisher or a subscriber; None for others.

    A server's ``error`` counts attempts that failed, those that are tried again included.
    """
    from matador.pubsub import Publisher, Subscriber
    from matador.rpc import RpcClient, RpcServer

    match source:
        case RpcServer():
            return lambda: [_handled("matador_rpc_requests", source.queue, source.metrics())]
        case RpcClient():
            return lambda: [_called(source.queue, source.metrics())]
        case Subscriber():
            return lambda: [_handled("matador_messages_consumed", source.queue, source.counters)]
        case Publisher():
            return lambda: [_published(source.exchange, source.counters)]
        case _:
            return None


def _called(queue: str, counts: RpcClientMetrics) -> Counted:
    by_status = {
        "success": counts.succeeded,
        "remote_error": counts.remote_errors,
        "unreadable": counts.unreadable,
        "timeout": counts.timeouts,
        "connection_lost": counts.connection_losses,
        "not_sent": counts.not_sent,
        "cancelled": counts.cancelled,
    }
    return "matador_rpc_calls", "Remote calls, by status.", "queue", queue, by_status


def _handled(name: str, queue: str, counters: MessageCounters) -> Counted:
    by_status = {
        "success": counters.succeeded,
        "error": counters.failed,
        "malformed": counters.malformed,
        "duplicate": counters.duplicates,
        "expired": counters.expired,
        "dead_letter": counters.dead_lettered,
    }
    return name, "Messages handled, by status.", "queue", queue, by_status


def _published(exchange: str, counters: MessageCounters) -> Counted:
    by_status = {
        "success": counters.sent,
        "error": counters.failed,
        "unroutable": counters.unroutable,
    }
    text = "Messages published, by status. Unroutable ones are among the successful."
    return "matador_messages_published", text, "exchange", exchange, by_status
