"""What a client has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RpcClientMetrics:
    """Counts of a client since it was made.

    Attributes:
        calls: calls that were begun, retries included.
        succeeded: calls that returned a result.
        remote_errors: calls that the server answered with an error.
        unreadable: calls whose reply could not be read.
        timeouts: calls without a reply in time.
        connection_losses: calls whose connection was lost.
        not_sent: calls whose request could not be sent.
        cancelled: calls that the caller has given up.
        retries: calls that were made again.
        notified: requests without a reply that the broker has confirmed.
    """

    calls: int = 0
    succeeded: int = 0
    remote_errors: int = 0
    unreadable: int = 0
    timeouts: int = 0
    connection_losses: int = 0
    not_sent: int = 0
    cancelled: int = 0
    retries: int = 0
    notified: int = 0
