"""``AckStrategy`` and ``DeadLetterOptions``: how RPC and pub/sub write their retry policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.model.options import (
    Seconds,
    one_of,
    optional_seconds,
    optional_whole_number,
    seconds,
    set_fields,
    whole_number,
)
from matador.model.topology import DeadLetterKind
from matador.policy.retry import CustomRetryPolicy

AckMode: TypeAlias = Literal["auto", "manual"]
"""``auto``: acknowledged when the handler returns. ``manual``: the handler calls ``ctx.ack()``."""

Requeue: TypeAlias = bool | Callable[[Exception, int], bool]
"""Whether to retry: always, never, or as a function of the error and the attempt decides."""

RetryDelay: TypeAlias = Seconds | Callable[[int], float]
"""Seconds before the next attempt, or a function of the attempt that has failed."""

DEAD_LETTER: DeadLetterKind = "dlq"
"""The kind of dead letters of plain messages: they are in ``{queue}.dlq``."""


@dataclass(frozen=True, slots=True, init=False)
class AckStrategy:
    """When a message is acknowledged, and what happens to one whose handler failed.

    Args:
        mode: ``auto``: acknowledged once the handler has returned. ``manual``: once the handler
            has called ``ctx.ack()``, or ``ctx.nack()``.
        requeue: whether a failed message is tried again: True, False, or a function of the error
            and of the number of the attempt.
        max_retries: the total number of attempts, including the first. Then the message becomes a
            dead letter.
        retry_delay: seconds before the next attempt, or a function of the number of the attempt
            that has failed. None: the delays of ``StandardRetryPolicy``, from 1 s on.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> strategy = AckStrategy(max_retries=5, retry_delay=lambda attempt: 2.0**attempt)
        >>> strategy.policy.delay(2)
        4.0
    """

    mode: AckMode
    requeue: Requeue
    max_retries: int
    retry_delay: RetryDelay | None

    def __init__(
        self,
        mode: AckMode = "auto",
        requeue: Requeue = True,
        max_retries: int = 3,
        retry_delay: RetryDelay | None = None,
    ) -> None:
        where = "AckStrategy"
        one_of(mode, f"{where}: mode", get_args(AckMode))
        if not isinstance(requeue, bool) and not callable(requeue):
            raise ConfigurationError(
                f"{where}: requeue must be True, False or a function, got {requeue!r}"
            )
        if retry_delay is not None and not callable(retry_delay):
            retry_delay = seconds(retry_delay, f"{where}: retry_delay")
        set_fields(
            self,
            mode=mode,
            requeue=requeue,
            max_retries=whole_number(max_retries, f"{where}: max_retries", minimum=1),
            retry_delay=retry_delay,
        )

    @property
    def policy(self) -> CustomRetryPolicy:
        """The retry policy that these options define."""
        delay, requeue = self.retry_delay, self.requeue
        delays: Callable[[int], Any] | None = None
        if delay is not None:
            delays = delay if callable(delay) else lambda _: delay
        if isinstance(requeue, bool):
            return CustomRetryPolicy(
                self.max_retries, delays=delays, when=None if requeue else _never
            )
        return CustomRetryPolicy(self.max_retries, delays=delays, when=requeue)


def _never(error: Exception, attempt: int) -> bool:
    return False


@dataclass(frozen=True, slots=True, init=False)
class DeadLetterOptions:
    """What to do with messages that cannot be handled. They are kept in the queue ``{queue}.dlq``.

    Args:
        enabled: False: they are deleted, with an error in the log.
        exchange: the exchange through which they are routed, on RabbitMQ.
        routing_key: the key they are published with, on RabbitMQ. None: ``{queue}.dead``.
        ttl: seconds for which they are kept. None: until they are read.
        max_length: how many are kept; the oldest are dropped first. None: all.
        handler: a function that is called with the data of each dead letter, which is then
            deleted. After three failed attempts it is deleted, too, with an error in the log.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> DeadLetterOptions(ttl=86_400, max_length=10_000).exchange
        'dlx'
    """

    enabled: bool
    exchange: str
    routing_key: str | None
    ttl: float | None
    max_length: int | None
    handler: Callable[..., object] | None

    def __init__(
        self,
        enabled: bool = True,
        exchange: str = "dlx",
        routing_key: str | None = None,
        ttl: Seconds | None = None,
        max_length: int | None = None,
        handler: Callable[..., object] | None = None,
    ) -> None:
        where = "DeadLetterOptions"
        if not isinstance(exchange, str) or not exchange:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"{where}: exchange must be a name, got {exchange!r}")
        if handler is not None and not callable(handler):
            raise ConfigurationError(f"{where}: handler must be a function, got {handler!r}")
        set_fields(
            self,
            enabled=enabled,
            exchange=exchange,
            routing_key=routing_key,
            ttl=optional_seconds(ttl, f"{where}: ttl"),
            max_length=optional_whole_number(max_length, f"{where}: max_length", minimum=1),
            handler=handler,
        )

    @classmethod
    def of(cls, given: DeadLetterOptions | bool | None) -> DeadLetterOptions:
        """Convert options, a flag or None. None: dead letters are kept.

        Example:
            >>> DeadLetterOptions.of(False).enabled
            False
        """
        return given if isinstance(given, DeadLetterOptions) else cls(enabled=given is not False)
