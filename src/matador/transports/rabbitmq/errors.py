"""Errors of pika and replies of the broker, each as the error of ours that says what to do.

No text of ours holds a credential: addresses are written without them, and pika's own texts name
hosts and reply codes only.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any

from pika import exceptions as pika_errors

from matador.errors import (
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    NotConnectedError,
    QueueNotFoundError,
    SendRefusedError,
    TimeoutError,
    TransportClosedError,
    TransportError,
    UnsupportedError,
)

# Reply codes of AMQP.
CONTENT_TOO_LARGE, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED = 311, 403, 404, 405
PRECONDITION_FAILED, COMMAND_INVALID, NOT_ALLOWED, RESOURCE_ERROR = 406, 503, 530, 506

_NAMED_EXCHANGE = re.compile(r"exchange '(?P<exchange>.*?)' in vhost", re.DOTALL)
_LARGEST = re.compile(r"larger than \D*(?P<limit>\d+)")
_DEEPEST = 10  # wrappers in wrappers


def translate(error: BaseException, what: str) -> MatadorError:
    """The error of ours for one of pika; ``what`` was being done. The original is its cause."""
    if isinstance(error, MatadorError):
        return error
    made = _translate(error, what)
    made.__cause__ = error
    return made


def _translate(error: BaseException, what: str) -> MatadorError:
    match error:
        case pika_errors.ChannelClosedByBroker():
            return _refused(error.reply_code, error.reply_text, what)
        case pika_errors.ConnectionClosedByBroker():
            return NotConnectedError(
                f"{what}: the broker closed the connection ({error.reply_code}: "
                f"{error.reply_text}); reconnecting"
            )
        case pika_errors.ConnectionClosedByClient() | pika_errors.ChannelClosedByClient():
            return TransportClosedError(f"{what}: closed by this process")
        case pika_errors.UnroutableError():
            return QueueNotFoundError(f"{what}: no queue accepts it")
        case pika_errors.NackError():
            return SendRefusedError(f"{what}: the broker refused it")
        case pika_errors.ConsumerCancelled():
            return LeaseLostError(f"{what}: the broker cancelled the consumer")
        case pika_errors.AMQPHeartbeatTimeout():
            return NotConnectedError(f"{what}: the broker stopped sending heartbeats")
        case pika_errors.ConnectionBlockedTimeout():
            return NotConnectedError(f"{what}: the broker blocked the connection for too long")
        case (
            pika_errors.AuthenticationError()
            | pika_errors.ProbableAuthenticationError()
            | pika_errors.ProbableAccessDeniedError()
            | pika_errors.IncompatibleProtocolError()
            | pika_errors.ConnectionOpenAborted()
        ):
            return ConnectionFailedError(f"{what}: {reason_of(error)}")
        case pika_errors.NoFreeChannels():
            return TransportError(
                f"{what}: no free channel; subscribe to fewer queues with one transport"
            )
        case pika_errors.AMQPConnectionError():
            return NotConnectedError(f"{what}: the connection was lost: {reason_of(error)}")
        case pika_errors.AMQPChannelError():
            return NotConnectedError(f"{what}: the channel was lost: {reason_of(error)}")
        case pika_errors.ShortStringTooLong():
            return SendRefusedError(f"{what}: a name or an id has more than 255 bytes")
        case pika_errors.BodyTooLongError():
            return NotConnectedError(f"{what}: a broken message arrived: {reason_of(error)}")
        case pika_errors.MethodNotImplemented():
            return UnsupportedError(f"{what}: the server cannot do that: {reason_of(error)}")
        case pika_errors.AMQPError() | pika_errors.ChannelError() | pika_errors.ReentrancyError():
            return TransportError(f"{what}: {reason_of(error)}")
        case asyncio.TimeoutError():
            return TimeoutError(f"{what}: the broker did not answer in time")
        case _:
            return TransportError(f"{what}: {reason_of(error)}")


def _refused(code: int, text: str, what: str) -> MatadorError:
    """The broker closed the channel: why?"""
    if code == NOT_FOUND:
        return QueueNotFoundError(f"{what}: {text}")
    if code == ACCESS_REFUSED:
        return UnsupportedError(
            f"{what}: {text}; the user needs more permissions: rabbitmqctl set_permissions"
        )
    if code == PRECONDITION_FAILED and "delivery acknowledgement" in text:
        return NotConnectedError(
            f"{what}: a message was held for too long and taken back ({text}); increase "
            f"consumer_timeout on the server"
        )
    if code == PRECONDITION_FAILED and "larger than" in text:
        return SendRefusedError(f"{what}: {text}; lower max_message_size to the server's limit")
    if code == RESOURCE_LOCKED:
        return UnsupportedError(f"{what}: {text}; another connection uses the queue exclusively")
    return TransportError(f"{what}: the broker replied {code}: {text}")


def publishing_refused(error: BaseException, exchange: str, size: int) -> MatadorError | None:
    """Why a message with a body of that size was refused by closing the channel; None: it was not.

    The broker says which exchange it means, or which size.
    """
    if not isinstance(error, pika_errors.ChannelClosedByBroker):
        return None
    named = _NAMED_EXCHANGE.search(error.reply_text)
    if named is not None:
        refused = _refused(error.reply_code, error.reply_text, "publishing")
        return refused if named["exchange"] == exchange else None
    limit = _LARGEST.search(error.reply_text)
    if limit is not None and size > int(limit["limit"]):
        return MessageTooLargeError(size, int(limit["limit"]), what="message (for this server)")
    return None


def connection_failed(error: BaseException, where: str) -> ConnectionFailedError:
    """Why no connection could be made to one host."""
    root = _root(error)
    remedy = "check the host and the port, and that RabbitMQ is running"
    text = reason_of(root)
    match root:
        case pika_errors.ProbableAuthenticationError() | pika_errors.AuthenticationError():
            remedy = "check user and password"
        case pika_errors.ProbableAccessDeniedError():
            remedy = "check the virtual host and the user's permissions"
        case pika_errors.ConnectionClosed() if root.reply_code in (ACCESS_REFUSED, NOT_ALLOWED):
            remedy = "check the user, the password, the virtual host and the user's permissions"
        case pika_errors.IncompatibleProtocolError():
            remedy = "this is not RabbitMQ, or the port uses TLS: try amqps://"
        case ssl.SSLCertVerificationError():
            remedy = "the certificate is not trusted: set tls_ca, or check the host name"
        case ssl.SSLError():
            remedy = "check that the port uses TLS, and check the options tls_ca, tls_cert, tls_key"
        case _:
            pass
    failed = ConnectionFailedError(f"could not connect to {where}: {text}; {remedy}")
    failed.__cause__ = error
    return failed


def _root(error: BaseException) -> BaseException:
    """The reason inside pika's wrappers of the steps of connecting."""
    for _ in range(_DEEPEST):
        several: Any = getattr(error, "exceptions", None) or ()
        inner = [getattr(error, "exception", None), *several, *error.args]
        found = [one for one in inner if isinstance(one, BaseException)]
        if not found:
            break
        error = found[-1]
    return error


def reason_of(error: BaseException) -> str:
    """What an error says; its name if it says nothing."""
    text = str(error) or repr(error)
    return text if text not in ("()", "''") else type(error).__name__
