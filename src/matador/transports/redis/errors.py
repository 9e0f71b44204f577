"""Errors that only streams have. The others: ``matador.transports.redis_client.errors``."""

from __future__ import annotations

from redis import exceptions as redis_errors


def has_lost_group(error: BaseException) -> bool:
    """Has the server lost a queue: emptied, or restored from an older copy?"""
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith(
        ("NOGROUP", "UNBLOCKED")
    )
