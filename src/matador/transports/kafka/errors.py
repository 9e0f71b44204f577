"""Translates the errors of confluent-kafka.

Errors after which a retry may succeed become a ``NotConnectedError``, or one of the
``SendFailedError`` family. All others are permanent: a missing topic, a lost partition, a message
that Kafka rejects, missing permissions, an invalid setting.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from matador.errors import (
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    QueueNotFoundError,
    SendRefusedError,
    SendTimeoutError,
    SendUnconfirmedError,
    StorageFullError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)


def _codes(*names: str) -> frozenset[int]:
    """The codes with these names, as far as this version of the client library has them."""
    return frozenset(
        code for name in names if (code := getattr(KafkaError, name, None)) is not None
    )


_MISSING = _codes(
    *("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID"),
    *("_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "GROUP_ID_NOT_FOUND"),
)
_OWNER_CHANGED = _codes(
    *("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH"),
    *("STALE_MEMBER_EPOCH", "_ASSIGNMENT_LOST", "UNRELEASED_INSTANCE_ID"),
    *("_MAX_POLL_EXCEEDED", "MEMBER_ID_REQUIRED"),
)
_REBALANCING = _codes(
    *("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"),
    *("STALE_MEMBER_EPOCH", "_ASSIGNMENT_LOST"),
)
_TOO_LARGE = _codes("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE")
_UNSTORABLE = _codes(
    *("INVALID_MSG", "INVALID_RECORD", "INVALID_TIMESTAMP", "_INVALID_ARG", "_INVALID_TYPE"),
    *("_KEY_SERIALIZATION", "_VALUE_SERIALIZATION", "POLICY_VIOLATION"),
    *("OFFSET_METADATA_TOO_LARGE", "INVALID_COMMIT_OFFSET_SIZE", "_BAD_MSG"),
)
_TIMEOUT = _codes("_MSG_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT")
_BUSY = _codes(
    *("_QUEUE_FULL", "THROTTLING_QUOTA_EXCEEDED", "NOT_ENOUGH_REPLICAS", "_ISR_INSUFF"),
    *("GROUP_MAX_SIZE_REACHED", "_PURGE_QUEUE"),
)
_TRANSIENT = _codes(
    *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"),
    *("PREFERRED_LEADER_NOT_AVAILABLE", "ELIGIBLE_LEADERS_NOT_AVAILABLE", "FENCED_LEADER_EPOCH"),
    *("UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "NOT_CONTROLLER", "NOT_COORDINATOR"),
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "BROKER_NOT_AVAILABLE"),
    *("NETWORK_EXCEPTION", "REBALANCE_IN_PROGRESS", "UNSTABLE_OFFSET_COMMIT"),
    *("CONCURRENT_TRANSACTIONS", "TRANSACTION_ABORTABLE", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
    *("UNKNOWN_PRODUCER_ID", "OUT_OF_ORDER_SEQUENCE_NUMBER", "DUPLICATE_SEQUENCE_NUMBER"),
    *("STALE_CTRL_EPOCH", "REBOOTSTRAP_REQUIRED", "UNKNOWN", "FETCH_SESSION_ID_NOT_FOUND"),
    *("INVALID_FETCH_SESSION_EPOCH", "STALE_BROKER_EPOCH", "LISTENER_NOT_FOUND"),
)
_FULL = _codes("KAFKA_STORAGE_ERROR", "LOG_DIR_NOT_FOUND")
_CREDENTIALS = _codes(
    *("SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "ILLEGAL_SASL_STATE", "_SSL"),
    *("UNSUPPORTED_SASL_MECHANISM", "SECURITY_DISABLED", "UNACCEPTABLE_CREDENTIAL"),
    *("DELEGATION_TOKEN_EXPIRED", "DELEGATION_TOKEN_NOT_FOUND", "DELEGATION_TOKEN_AUTH_DISABLED"),
)
_ACCESS = _codes(
    *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
    *("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTHORIZATION_FAILED"),
)
_UNSUPPORTED = _codes(
    *("UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "_UNSUPPORTED_FEATURE"),
    *("_NOT_IMPLEMENTED", "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_ASSIGNOR"),
    *("INCONSISTENT_GROUP_PROTOCOL", "INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS"),
    *("INVALID_CONFIG", "TOPIC_EXCEPTION", "INVALID_SESSION_TIMEOUT", "TOPIC_DELETION_DISABLED"),
)
_FENCED = _codes(
    *("PRODUCER_FENCED", "_FENCED", "INVALID_PRODUCER_EPOCH", "TRANSACTION_COORDINATOR_FENCED"),
    *("_FATAL", "_STATE", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING"),
)
_REMEDIES = {
    "UNSUPPORTED": "check the versions of broker and client, and the options of the transport",
    "CREDENTIALS": "check user, password, sasl_mechanism and the certificates",
    "ACCESS": "allow this operation in the ACLs of the topic, the group and the transactional id",
}

_HINTS = {
    "INVALID_RECORD": "; a topic that is compacted (cleanup.policy) takes only messages with a key",
}


def error_of(error: BaseException) -> KafkaError | None:
    """The Kafka error in an exception, if there is one."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return found if isinstance(found, KafkaError) else None


def is_missing(error: BaseException | KafkaError) -> bool:
    """Whether a topic or a partition does not exist."""
    found = error if isinstance(error, KafkaError) else error_of(error)
    return found is not None and found.code() in _MISSING


def is_refusal(error: BaseException) -> bool:
    """Whether the brokers have answered, and reject the credentials."""
    found = error_of(error if error.__cause__ is None else error.__cause__)
    return found is not None and found.code() in _CREDENTIALS


def has_no_leader(error: MatadorError) -> bool:
    """Whether no broker leads a partition: its topic was deleted, or a broker is down."""
    found = None if error.__cause__ is None else error_of(error.__cause__)
    return found is not None and found.code() == KafkaError._NOENT


def is_rebalancing(error: MatadorError | None) -> bool:
    """Whether a commit must be repeated after a rebalance."""
    found = None if error is None or error.__cause__ is None else error_of(error.__cause__)
    return found is not None and found.code() in _REBALANCING


def still_owned(error: MatadorError) -> SendUnconfirmedError:
    """The error for a refused commit if no rebalance has taken the partition away."""
    made = SendUnconfirmedError(f"the consumer group is rebalancing; try again: {error}")
    made.__cause__ = error.__cause__
    return made


def translate(
    error: BaseException | KafkaError,
    where: str,
    *,
    queue: str = "",
    opening: bool = False,
    limit: int = 0,
    size: int = 0,
) -> MatadorError:
    """The Matador error for ``error``, which becomes its cause.

    Args:
        where: the cluster.
        queue: the queue or topic that the error is about.
        opening: the error ended an attempt to connect.
        limit: the option ``max_message_size``.
        size: the size of the record that could not be stored, if there is one.
    """
    if isinstance(error, MatadorError):
        return error
    if isinstance(error, KafkaError):
        made = _of_code(error, where, queue, opening, limit, size)
        made.__cause__ = KafkaException(error)
        return made
    found = error_of(error)
    if found is not None:
        made = _of_code(found, where, queue, opening, limit, size)
    elif isinstance(error, BufferError):
        made = SendRefusedError(f"{where}: too many messages are being sent; try again later")
    elif opening:
        made = ConnectionFailedError(f"cannot reach {where}: {error or type(error).__name__}")
    elif isinstance(error, TypeError | ValueError):
        made = UnstorableError(f"{where}: {type(error).__name__}: {error}")
    else:
        made = TransportError(f"{where}: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def _of_code(
    error: KafkaError, where: str, queue: str, opening: bool, limit: int, size: int
) -> MatadorError:
    code = error.code()
    about = f" ({queue})" if queue else ""
    said = f"{where}{about}: {error.str()} ({error.name()})"
    if code in _CREDENTIALS:
        made = ConnectionFailedError if opening else TransportError
        return made(f"{said}; {_REMEDIES['CREDENTIALS']}")
    if opening:
        return ConnectionFailedError(f"cannot reach {said}; check hosts, ports and TLS")
    if code in _MISSING:
        return QueueNotFoundError(f"there is no queue {queue!r}: {said}")
    if code in _OWNER_CHANGED:
        return LeaseLostError(f"the partition belongs to another worker now: {said}")
    if code in _TOO_LARGE:
        why = "; the topic or the broker has a lower one: raise max.message.bytes there"
        return MessageTooLargeError(size, limit, why=why if size <= limit else "")
    if code in _UNSTORABLE:
        return UnstorableError(f"{said}{_HINTS.get(error.name(), '')}")
    if code in _TIMEOUT:
        return SendTimeoutError(f"no confirmation in time: {said}")
    if code in _BUSY:
        return SendRefusedError(f"Kafka rejects it for now; try again later: {said}")
    if code in _FULL:
        return StorageFullError(f"{said}; check the disks of the brokers")
    if code in _ACCESS:
        # Missing permissions refuse every form of a record, so a simpler form does not help.
        refused = SendRefusedError if size else TransportError
        return refused(f"{said}; {_REMEDIES['ACCESS']}")
    if code in _UNSUPPORTED:
        return UnsupportedError(f"{said}; {_REMEDIES['UNSUPPORTED']}")
    if code in _FENCED or error.fatal():
        return SendUnconfirmedError(f"the client must start again: {said}")
    if code < 0 or code in _TRANSIENT or error.retriable():
        return SendUnconfirmedError(f"no answer, so the outcome is unknown: {said}")
    return TransportError(said)
