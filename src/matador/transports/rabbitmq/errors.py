"""Translates errors of pika and replies of the broker into errors that say what to do.

No text contains a credential: addresses are written without them, and pika's own texts only name
hosts and reply codes.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any

from pika import exceptions as theirs

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
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED = 403, 404, 405
PRECONDITION_FAILED, NOT_ALLOWED = 406, 530

_NAMED_EXCHANGE = re.compile(r"exchange '(?P<exchange>.*?)' in vhost", re.DOTALL)
_LARGEST = re.compile(r"larger than \D*(?P<limit>\d+)")
_DEEPEST = 10  # wrappers in wrappers

_REFUSED_CONNECTION = (
    theirs.AuthenticationError,
    theirs.ProbableAuthenticationError,
    theirs.ProbableAccessDeniedError,
    theirs.IncompatibleProtocolError,
    theirs.ConnectionOpenAborted,
)
_CLOSED_BY_US = (theirs.ConnectionClosedByClient, theirs.ChannelClosedByClient)

# pika's errors, the most specific first: ours, and a text in which {} is what pika says.
_TRANSLATIONS: tuple[tuple[Any, type[MatadorError], str], ...] = (
    (theirs.ConnectionClosedByBroker, NotConnectedError, "the broker disconnected us ({})"),
    (_CLOSED_BY_US, TransportClosedError, "closed by this process"),
    (theirs.UnroutableError, QueueNotFoundError, "no queue accepts it"),
    (theirs.NackError, SendRefusedError, "the broker refused it"),
    (theirs.ConsumerCancelled, LeaseLostError, "the broker cancelled the consumer"),
    (theirs.AMQPHeartbeatTimeout, NotConnectedError, "the broker stopped sending heartbeats"),
    (theirs.ConnectionBlockedTimeout, NotConnectedError, "the broker blocked us for too long"),
    (_REFUSED_CONNECTION, ConnectionFailedError, "{}"),
    (theirs.NoFreeChannels, TransportError, "no free channel; subscribe to fewer queues"),
    (theirs.AMQPConnectionError, NotConnectedError, "the connection was lost: {}"),
    (theirs.AMQPChannelError, NotConnectedError, "the channel was lost: {}"),
    (theirs.ShortStringTooLong, SendRefusedError, "a name or an id has more than 255 bytes"),
    (theirs.BodyTooLongError, NotConnectedError, "a broken message arrived: {}"),
    (theirs.MethodNotImplemented, UnsupportedError, "the server cannot do that: {}"),
    (asyncio.TimeoutError, TimeoutError, "the broker did not answer in time"),
    (BaseException, TransportError, "{}"),
)


def translate(error: BaseException, what: str) -> MatadorError:
    """Return the error of this package for one of pika, its cause. ``what`` names what failed."""
    if isinstance(error, MatadorError):
        return error
    if isinstance(error, theirs.ChannelClosedByBroker):
        made = _refused(error.reply_code, error.reply_text, what)
    else:
        ours, text = next(
            (ours, text) for kind, ours, text in _TRANSLATIONS if isinstance(error, kind)
        )
        made = ours(f"{what}: {text.replace('{}', reason_of(error))}")
    made.__cause__ = error
    return made


def _refused(code: int, text: str, what: str) -> TransportError:
    """Why the broker closed the channel."""
    kind, told = TransportError, f"the broker replied {code}: {text}"
    if code == NOT_FOUND:
        kind, told = QueueNotFoundError, text
    elif code == ACCESS_REFUSED:
        kind = UnsupportedError
        told = f"{text}; the user needs more permissions: rabbitmqctl set_permissions"
    elif code == PRECONDITION_FAILED and "delivery acknowledgement" in text:
        kind = NotConnectedError
        told = (
            f"a message was held for too long and taken back ({text}); increase "
            f"consumer_timeout on the server"
        )
    elif code == PRECONDITION_FAILED and "larger than" in text:
        kind = SendRefusedError
        told = f"{text}; lower max_message_size to the server's limit"
    elif code == RESOURCE_LOCKED:
        kind, told = UnsupportedError, f"{text}; another connection uses the queue exclusively"
    return kind(f"{what}: {told}")


def publishing_refused(error: BaseException, exchange: str, size: int) -> MatadorError | None:
    """Why the broker closed the channel for a message with this exchange and size of its body.

    None if the message is not the reason: the broker names the exchange, or the size.
    """
    if not isinstance(error, theirs.ChannelClosedByBroker):
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
    """Why a connection to one host failed, and what to check."""
    root = _root(error)
    match root:
        case theirs.ProbableAuthenticationError() | theirs.AuthenticationError():
            remedy = "check user and password"
        case theirs.ProbableAccessDeniedError():
            remedy = "check the virtual host and the user's permissions"
        case theirs.ConnectionClosed() if root.reply_code in (ACCESS_REFUSED, NOT_ALLOWED):
            remedy = "check the user, the password, the virtual host and the user's permissions"
        case theirs.IncompatibleProtocolError():
            remedy = "this is not RabbitMQ, or the port uses TLS: try amqps://"
        case ssl.SSLCertVerificationError():
            remedy = "the certificate is not trusted: set tls_ca, or check the host name"
        case ssl.SSLError():
            remedy = "check that the port uses TLS, and check the options tls_ca, tls_cert, tls_key"
        case _:
            remedy = "check the host and the port, and that RabbitMQ is running"
    failed = ConnectionFailedError(f"could not connect to {where}: {reason_of(root)}; {remedy}")
    failed.__cause__ = error
    return failed


def _root(error: BaseException) -> BaseException:
    """The reason inside pika's wrappers for the steps of connecting."""
    for _ in range(_DEEPEST):
        several: Any = getattr(error, "exceptions", None) or ()
        inner = [getattr(error, "exception", None), *several, *error.args]
        found = [one for one in inner if isinstance(one, BaseException)]
        if not found:
            break
        error = found[-1]
    return error


def reason_of(error: BaseException) -> str:
    """What an error says, or its name if it says nothing."""
    if isinstance(error, theirs.ConnectionClosed):
        return f"{error.reply_code}: {error.reply_text}"
    text = str(error) or repr(error)
    return text if text not in ("()", "''") else type(error).__name__
