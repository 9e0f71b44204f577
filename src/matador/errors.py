"""Every error that Matador raises.

The first paragraph of a docstring below is the error's ``description``: what it means and what to
do. The classes stand in the order of this tree::

    MatadorError
    ├── LifecycleError
    │   ├── NotStartedError                 the application has not been started
    │   ├── ShuttingDownError               the application is shutting down or has stopped
    │   ├── WrongLoopError                  the application runs in another event loop
    │   └── TimeoutError                    the operation timed out (also a built-in TimeoutError)
    ├── TransportError
    │   ├── NotConnectedError               there is no connection to the broker
    │   │   └── TransportClosedError        the transport has been disconnected
    │   ├── ConnectionFailedError           the broker is unreachable or refused the connection
    │   ├── SendFailedError                 some messages of an event were not stored
    │   │   ├── SendRefusedError            the broker refused the message: it is not stored
    │   │   └── SendUnconfirmedError        the connection was lost: it may be stored
    │   │       └── SendTimeoutError        no confirmation in time: it may be stored
    │   ├── PublishError                    some messages were not published
    │   ├── AllTransportsFailedError        the transport and all its fallbacks failed
    │   ├── NotConsumedHereError            nothing in this process consumes the queue
    │   ├── UnsupportedError                the transport lacks a capability
    │   │   └── DelaysNotSupportedError     the transport cannot delay messages
    │   ├── QueueNotFoundError              the queue does not exist
    │   ├── QueuePausedError                the queue must be drained, but is paused
    │   ├── UnstorableError                 the broker can never store the message
    │   │   └── MessageTooLargeError        the message exceeds the size limit
    │   ├── StorageFullError                the disk or the broker is full
    │   ├── StorageCorruptError             the database file is damaged or not ours
    │   ├── StorageLockedError              another process keeps the database file locked
    │   ├── LeaseLostError                  another worker has the message now
    │   ├── MessagesDeletedError            messages were deleted before they were read
    │   ├── BufferFullError                 too many sends wait for the connection
    │   ├── BufferExpiredError              a send waited too long for the connection
    │   ├── CircuitOpenError                the broker keeps failing; sends are suspended
    │   └── MissingExtraError               the client library is not installed
    ├── SchemaError
    │   ├── InvalidSchemaError              lists every problem of a schema
    │   ├── InvalidTopologyError            lists every problem of a topology
    │   ├── EventNotRegisteredError         the event is not in the schema
    │   ├── SubscriberNotRegisteredError    the event has no such subscriber
    │   ├── NoSubscribersError              the event has no subscribers
    │   ├── SubscriberIsStubError           a stub cannot run here
    │   └── InProcessCannotRunStubError     the in-process transport cannot reach a stub
    ├── InvalidEventError                   the payload does not match the event's type
    │   └── AmbiguousPayloadError           a JSON object in the payload has a duplicate key
    ├── InvalidMessageError                 the data cannot be encoded as JSON, or decoded
    ├── DecodeError                         the message is not a valid envelope
    ├── ConfigurationError                  an option is invalid (also a ValueError)
    ├── ApplicationImportError              the application's module cannot be imported
    ├── HistoryError                        the file of the dashboard's history cannot be used
    ├── ClusterError                        work on a Spark cluster keeps failing
    ├── ObjectStoreError                    an object store cannot be reached, or refuses access
    ├── SparkPreparationError               the files for a faster Spark start cannot be created
    ├── MaybePoisonedError                  the message was delivered too often
    ├── NonIdempotentCannotRetryError       redelivered, but not safe to run again
    ├── StoreUnavailableError               a store of steps or duplicates cannot be used for now
    ├── CheckpointError
    │   ├── DuplicateStepKeyError           two steps of one run have the same key
    │   └── CheckpointStoreError            the checkpoint store failed
    │       ├── UnreadableStepValueError    a stored step result cannot be read
    │       └── UnstorableStepValueError    a step result cannot be stored
    ├── JobError
    │   ├── InvalidJobError                 an invalid argument, or data that cannot be encoded
    │   ├── DuplicateJobError               the queue already has a job with that id
    │   │   └── UniqueJobError              another job holds its unique key
    │   ├── JobsNotAddedError               some jobs of a batch were not stored
    │   ├── JobNotFoundError                no job with that id
    │   ├── JobStateError                   the job's state does not allow the operation
    │   ├── JobsUnsupportedError            the provider cannot do that
    │   ├── JobProviderError                the provider failed; the cause says why
    │   ├── JobFailedError                  the job whose result was awaited has failed
    │   │   └── JobCanceledError            it was canceled
    │   ├── JobTimeoutError                 a job, or its result, took too long
    │   └── PermanentJobError               raised by a handler: do not retry
    ├── RpcError
    │   ├── RemoteError                     the server answered with an error
    │   ├── RpcTimeoutError                 no reply in time (also a built-in TimeoutError)
    │   └── ConnectionLostError             the connection was lost; the call may have run
    ├── QueueError                          an operation of a queue service failed
    ├── DoRetry                             raised by a callback: retry the message
    ├── DontRetry                           raised by a callback: do not retry the message
    └── EventAssertionError                 raised by a callback: the event is wrong
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

_LONGEST = 300


class MatadorError(Exception):
    """The base class of all errors.

    ``description`` says what the error means and what to do; the message says what happened.

    Example:
        >>> from matador.errors import NotStartedError
        >>> NotStartedError().description
        'The application has not been started. Use `async with app:` or `await app.start()` first.'
    """

    description: ClassVar[str] = "Something went wrong in Matador."

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__ and cls.__doc__ and "description" not in vars(cls):
            cls.description = " ".join(cls.__doc__.partition("\n\n")[0].split())

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else self.description)

    @property
    def name(self) -> str:
        """The name of the error, as it appears in logs and dead letters."""
        return type(self).__name__

    @property
    def message(self) -> str:
        """The description of what happened."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, an exception is copied by calling its class with ``args``: the message. Many
        # errors here take other arguments.
        return _rebuild, (type(self), self.args), self.__dict__ or None

    def as_dict(self) -> Mapping[str, object]:
        """The error as plain data, for logs and for JSON.

        Example:
            >>> DontRetry("card declined").as_dict()["name"]
            'DontRetry'
        """
        return {"name": self.name, "message": str(self), "description": self.description}


def _rebuild(kind: type[MatadorError], args: tuple[Any, ...]) -> MatadorError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# -- life cycle -----------------------------------------------------------------------------------


class LifecycleError(MatadorError):
    """The application cannot do this in its current state."""


class NotStartedError(LifecycleError):
    """The application has not been started. Use `async with app:` or `await app.start()` first."""


class ShuttingDownError(LifecycleError):
    """The application is shutting down and accepts no new events. Send before the shutdown, or
    through another instance."""


class WrongLoopError(LifecycleError):
    """An application belongs to the event loop in which it was started. In another loop or thread,
    use a separate application (`app.producer()`), or `app.sync()`, which any thread may call."""


class TimeoutError(LifecycleError, builtins.TimeoutError):
    """The operation took longer than its time limit. Raise the limit, or find out what is slow.

    The built-in ``except TimeoutError`` catches it too. ``interrupted`` is True if it ended the
    handler of a message, which may have done half of its work.
    """

    interrupted: bool = False


# -- transports -----------------------------------------------------------------------------------


class TransportError(MatadorError):
    """The transport failed. See the cause."""


class NotConnectedError(TransportError):
    """The transport is not connected. Start the application first. If it is running, the broker is
    unreachable: check that the broker is up and that the URL is right."""


class TransportClosedError(NotConnectedError):
    """The transport has been disconnected, by ``disconnect`` or by the shutdown of its application.
    Connect it, or start the application, to use it again."""


class ConnectionFailedError(TransportError):
    """Could not connect to the broker. Check the host, port and credentials, and that the broker
    is running."""


class SendFailedError(TransportError):
    """Not every message is confirmed as stored; `result` says which messages are. A message whose
    outcome is unknown may be stored, so sending it again may create a duplicate.

    Raised by ``send`` and ``send_many``, and kept in ``SendResult.errors`` for each message that
    failed; there, ``result`` is None and ``results`` is empty. The transport's error is the cause
    (``__cause__``).

    Attributes:
        result: the ``SendResult`` of the event: what was stored, and every error. For
            ``send_many``, the first result with errors.
        results: the results of all events of ``send_many``, in order; for ``send``, the only one.
        subscriber, queue: the first message that was not stored.
        unknown: whether a message may be stored despite the error.

    Example:
        >>> try:
        ...     await app.send(OrderPlaced("1", 5))
        ... except SendFailedError as error:
        ...     print(error.result.sent, [one.subscriber for one in error.result.errors])
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        queue: str | None = None,
        subscriber: str | None = None,
        cause: BaseException | None = None,
        results: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        errors = [error for result in results for error in result.errors]
        self.queue = queue
        self.subscriber = subscriber
        self.results = tuple(results)
        self.result: Any = next((result for result in results if result.errors), None)
        self.unknown = any(may_be_stored(one) for one in (self, cause, *errors))
        if cause is not None:
            self.__cause__ = cause


class SendRefusedError(SendFailedError):
    """The broker refused the message, so it is not stored. A queue with a length limit may be full
    (`x-overflow: reject-publish`): consume it, or raise the limit."""


class SendUnconfirmedError(SendFailedError):
    """The connection was lost before the broker confirmed the message, so the message may or may
    not be stored. Send it again if duplicates do no harm."""


class SendTimeoutError(SendUnconfirmedError, builtins.TimeoutError):
    """The broker did not confirm the message in time, so the message may or may not be stored. The
    broker is overloaded or blocks publishers (memory or disk alarm): check its logs."""


class PublishError(TransportError):
    """Some messages were not published. `outcomes` says which messages failed and why. Publish
    those again. A message whose outcome is unknown may already be stored.

    Attributes:
        outcomes: in order of the messages (or, for one message, of the exchanges): a `Published`
            or a number of queues for what was published, and an error for what was not.

    Example:
        >>> try:
        ...     await publisher.publish_many(orders)
        ... except PublishError as error:
        ...     failed = [one for one in error.outcomes if isinstance(one, Exception)]
    """

    def __init__(self, message: str | None = None, outcomes: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outcomes = list(outcomes)


class AllTransportsFailedError(TransportError):
    """No transport of the group could store the message. Check each of them: the causes are listed.

    ``errors`` has the name and the error of each transport.
    """

    def __init__(self, errors: Sequence[tuple[str, BaseException]]) -> None:
        listed = "; ".join(f"{name}: {error}" for name, error in errors)
        super().__init__(f"all transports failed: {listed}")
        self.errors = tuple(errors)


class NotConsumedHereError(TransportError):
    """Nothing in this process consumes the queue, so an in-process transport would keep the message
    until the process ends, and then lose it. Send again when the broker is back, or fall back to a
    transport that other processes can reach."""


def may_be_stored(error: BaseException | None) -> bool:
    """Whether the message may be stored despite this send error."""
    if isinstance(error, AllTransportsFailedError):
        return any(may_be_stored(one) for _, one in error.errors)
    return isinstance(error, SendUnconfirmedError) or getattr(error, "unknown", False)


class UnsupportedError(TransportError):
    """This transport does not support the operation. See `transport.capabilities` for what it
    supports, and use another transport if you need more."""


class DelaysNotSupportedError(UnsupportedError):
    """This transport cannot delay messages safely. Send without a delay, use a transport that
    supports delays, or pass `unsupported_delays="deliver-now"` to deliver such messages at once."""


class QueueNotFoundError(TransportError):
    """The queue does not exist. Add it to the topology, or apply the topology (`matador topology
    apply`) if you have just added it."""


class QueuePausedError(TransportError):
    """A queue must be drained, but it is paused, so its messages are not delivered. Resume it with
    `matador queues resume`, then start again."""


class UnstorableError(TransportError):
    """The broker cannot store this message: part of it is too long or cannot be encoded. Sending
    it again does not help; the error message names the part."""


class MessageTooLargeError(UnstorableError):
    """The message is larger than the limit, so it was not sent. Send a reference to the data
    instead of the data, compress it (`codec=CompressedCodec(...)`), or raise `max_message_size`."""

    def __init__(self, size: int, limit: int, *, what: str = "message", why: str = "") -> None:
        super().__init__(f"the {what} has {size:,} bytes, the limit is {limit:,} bytes{why}")
        self.size = size
        self.limit = limit


class StorageFullError(TransportError):
    """There is no space left to store the message. Free some space; stored messages are intact."""


class StorageCorruptError(TransportError):
    """The file is damaged or is not a Matador database. Use another file in the URL, or restore
    this one from a backup."""


class StorageLockedError(TransportError):
    """The database file is locked by another process, so nothing was changed. Look for a process
    that keeps a transaction open (a shell, a backup), or raise `busy_timeout`."""


class LeaseLostError(TransportError):
    """The lease on the message expired before the message was settled (the process was frozen, or
    the machine slept). The broker refused the settlement. Another worker handles the message."""


class MessagesDeletedError(TransportError):
    """Messages were deleted before a stream or an ingest read them. Increase the retention beyond
    the lag of the reader. To continue without them, set option("missing", "skip") of the stream, or
    `missing="skip"` of the ingest (`--missing skip`)."""


class BufferFullError(TransportError):
    """The message buffer is full: too many sends wait for the connection. The message was not sent.
    Send less until the broker is back, or raise `Recovery(max_size=…)`."""


class BufferExpiredError(TransportError):
    """The message waited for the connection for too long and was not sent. Send it again once the
    broker is back, or raise `Recovery(ttl=…)`."""


class CircuitOpenError(TransportError):
    """The circuit breaker is open: the broker keeps failing, so the message was not sent. Sends are
    attempted again when the connection is back, or after `CircuitBreaker(recovery_time=…)`."""


class MissingExtraError(TransportError):
    """An optional dependency is missing. Install the extra named in the message."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'matador-events[{extra}]'")
        self.extra = extra


# -- schema and topology --------------------------------------------------------------------------


class SchemaError(MatadorError):
    """Events, subscribers and queues do not match."""


class InvalidSchemaError(SchemaError):
    """The schema is invalid. Fix every problem listed (`problems`)."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(_listed("Schema", problems))
        self.problems = tuple(problems)


class InvalidTopologyError(SchemaError):
    """The topology is invalid. Fix every problem listed (`problems`)."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(_listed("Topology", problems))
        self.problems = tuple(problems)


def _listed(what: str, problems: Sequence[str]) -> str:
    return "\n  - ".join((f"{what} validation failed:", *problems))


class EventNotRegisteredError(SchemaError):
    """The event is not in the schema. Add it to the `Schema`, or correct the key."""


class SubscriberNotRegisteredError(SchemaError):
    """The event has no subscriber with that name. It may have been renamed, or this worker runs
    older code than the sender: deploy the new code, then redrive the unhandled messages."""


class NoSubscribersError(SchemaError):
    """The event has no subscribers, so it would reach no handler. Add a subscriber."""


class SubscriberIsStubError(SchemaError):
    """The subscriber is a stub: its code is in another service. Let that service consume the
    queue, give the stub a queue of its own, or register the real subscriber here."""


class InProcessCannotRunStubError(SchemaError):
    """The in-process transport delivers only within this process, but the stub's code is in another
    service, so the message would never be handled. Use a transport that both services can reach."""


# -- messages -------------------------------------------------------------------------------------


class InvalidEventError(MatadorError):
    """The payload does not match the event's type. Correct the field named in the message."""


class AmbiguousPayloadError(InvalidEventError):
    """A JSON object in the payload has a duplicate key, so its meaning is ambiguous. Correct the
    program that sent it."""


class InvalidMessageError(MatadorError):
    """The data of a message cannot be written as JSON, or is not of the type that was expected. The
    message names the field."""


class DecodeError(MatadorError):
    """The message could not be decoded. It is kept unchanged as a dead letter. Identify the program
    that sent it, or configure the codec it was encoded with.

    The error message is short and printable, whatever the bytes contain.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(None if message is None else _excerpt(message))


def _excerpt(text: str) -> str:
    """Shorten text that may contain foreign data to one printable line."""
    line = text[:_LONGEST]
    if not line.isprintable():
        line = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in line
        )
    return line if len(text) <= _LONGEST >= len(line) else f"{line[: _LONGEST - 1]}…"


class ConfigurationError(MatadorError, ValueError):
    """An option is invalid. The message names it."""


class ApplicationImportError(MatadorError):
    """The application's module cannot be imported. The message names the line."""


class HistoryError(MatadorError):
    """The SQLite file with the history for the dashboard cannot be read or written. Check its
    folder, its owner and the disk, or give another file."""


class ClusterError(MatadorError):
    """Work on the Spark cluster keeps failing. The message has the last reason; see the logs of
    the executors for more."""


class ObjectStoreError(MatadorError, OSError):
    """An object store (S3, Google Cloud Storage, Azure, HDFS) could not be reached or refused the
    request. Check the address, the credentials and their permissions. No partial change was made.
    """


class SparkPreparationError(MatadorError):
    """Spark could not be prepared on this machine. It still starts, but more slowly. The message
    says why; often the cache folder is not writable (see MATADOR_CACHE)."""


class MaybePoisonedError(MatadorError):
    """The message was delivered many times and never settled, so it may crash its worker. Look at
    the payload and the worker's logs before you redrive it."""


class NonIdempotentCannotRetryError(MatadorError):
    """The message was delivered before, and its subscriber is not declared safe to run again. Check
    what it did; declare it `idempotent="yes"` or `"resumable"` if it can be repeated."""


# -- checkpoints ----------------------------------------------------------------------------------


class StoreUnavailableError(MatadorError):
    """A store that messages depend on (steps, duplicates) cannot be used for now. The message goes
    back to its queue; no attempt is counted. Check that the store is reachable."""


class CheckpointError(MatadorError):
    """The steps of a resumable subscriber could not be stored or read."""


class DuplicateStepKeyError(CheckpointError):
    """Two steps of one run have the same key, so their results cannot be told apart. Give each
    step its own key, and use the same keys in every attempt."""


class CheckpointStoreError(CheckpointError):
    """The checkpoint store failed. Check that it is reachable and has space left."""


class UnreadableStepValueError(CheckpointStoreError):
    """The stored result of a step is damaged, comes from another version of its class, or names a
    class that is not loaded here; the store never causes an import. Define the class at the top of
    the subscriber's module, or import it there.

    The step does not run again.
    """


# -- control of retries ---------------------------------------------------------------------------


class DoRetry(MatadorError):
    """The handler asked for a retry, regardless of its idempotency.

    Raise it in a handler to retry the message, after ``delay`` seconds if given, up to the maximum
    number of attempts.

    Example:
        >>> raise DoRetry("the gateway is down for a minute", delay=60)
        Traceback (most recent call last):
        matador.errors.DoRetry: the gateway is down for a minute
    """

    def __init__(
        self, message: str | None = None, *, delay: float | timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else delay


class DontRetry(MatadorError):
    """The handler reported that a retry would not help.

    Raise it in a handler to move the message to the dead letters at once.

    Example:
        >>> raise DontRetry("the card was declined")
        Traceback (most recent call last):
        matador.errors.DontRetry: the card was declined
    """


class UnstorableStepValueError(CheckpointStoreError, DontRetry):
    """A step's result must be JSON data, or a dataclass, msgspec, pydantic or attrs object. Return
    something simpler from the step, for example an id.

    The message is not retried, because the step has already had its effect.
    """


class EventAssertionError(MatadorError, AssertionError):
    """An assertion about the event failed. A retry would fail again, so there is none.

    ``envelope`` is the envelope in question, if given.
    """

    def __init__(self, message: str | None = None, *, envelope: object = None) -> None:
        super().__init__(message)
        self.envelope = envelope


def assert_event(envelope: object, condition: object, message: str) -> None:
    """Raise ``EventAssertionError`` with ``message`` unless ``condition`` holds.

    Example:
        >>> assert_event(None, 1 + 1 == 2, "arithmetic holds")
    """
    if not condition:
        raise EventAssertionError(message, envelope=envelope)


# -- jobs ---------------------------------------------------------------------------------------


class JobError(MatadorError):
    """The base class of errors about a job or a job queue.

    Attributes:
        type: the category of the problem, the same for every provider.
        code: the specific problem within the category.
        retryable: the same operation may succeed later.
        queue: the name of the queue, if any. job_id: the id of the job, if any.
    """

    description = "Something went wrong with a job."
    type: ClassVar[str] = "RuntimeError"
    code: str = "PROCESSING"
    retryable: bool = False

    def __init__(
        self, message: str | None = None, *, queue: str | None = None, job_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.job_id = job_id

    def as_dict(self) -> Mapping[str, object]:
        """The error as plain data, for logs and for JSON.

        Example:
            >>> error.as_dict()["code"], error.as_dict()["job_id"]
            ('DUPLICATE', 'welcome-17')
        """
        fields = {"type": self.type, "code": self.code, "retryable": self.retryable}
        return {**super().as_dict(), **fields, "queue": self.queue, "job_id": self.job_id}


class InvalidJobError(JobError, ValueError):
    """An argument is invalid, or the data cannot be encoded as JSON."""

    description = "Nothing was stored. Correct the argument that the message names."
    type = "DataError"
    code = "VALIDATION"


class DuplicateJobError(JobError):
    """A job with that id is in the queue already. The new one was not stored."""

    description = "The queue has a job with this id. Choose another id, or remove that job first."
    type = "DataError"
    code = "DUPLICATE"


class UniqueJobError(DuplicateJobError):
    """Another job has the unique key. ``job_id`` is the id of that job."""

    description = "The job was not added because another job holds its unique key."
    code = "NOT_UNIQUE"


class JobsNotAddedError(JobError):
    """Some jobs of a batch could not be added.

    Attributes:
        errors: the errors by position in the batch. All other jobs were added.
    """

    description = "Add the jobs listed in `errors` again. The other jobs are stored."
    type = "DataError"
    code = "ENQUEUE"

    def __init__(
        self,
        message: str | None = None,
        errors: Mapping[int, JobError] | None = None,
        *,
        queue: str | None = None,
    ) -> None:
        super().__init__(message, queue=queue)
        self.errors: Mapping[int, JobError] = errors or {}


class JobNotFoundError(JobError):
    """No job with that id."""

    description = "There is no such job. It may have been completed and removed."
    type = "NotFoundError"
    code = "JOB_NOT_FOUND"

    @property
    def resource_id(self) -> str | None:
        """The id that was requested."""
        return self.job_id

    @property
    def resource_type(self) -> str:
        """Always ``job``."""
        return "job"


class JobStateError(JobError):
    """The job's state does not allow the operation."""

    description = "Only failed jobs can be retried, and active ones cannot be removed."
    type = "DataError"
    code = "STATE"


class JobsUnsupportedError(JobError):
    """The provider cannot do that."""

    description = "The provider cannot do that. `queue.capabilities` says what it can do."
    type = "ConfigurationError"
    code = "UNSUPPORTED_FEATURE"


class JobProviderError(JobError):
    """The provider failed. The cause says why."""

    description = "The provider could not do it now. Look at the cause, then try again."
    code = "PROVIDER"
    retryable = True


class JobFailedError(JobError):
    """The job whose result was awaited has failed permanently. The message is its last error."""

    description = "The job failed in its last attempt. `queue.retry(job_id)` runs it again."
    code = "FAILED"


class JobCanceledError(JobFailedError, DontRetry):
    """The job was canceled, by ``handle.cancel()`` or ``queue.cancel(job_id)``."""

    description = (
        "The job was canceled. If it had already started, `queue.retry(job_id)` runs it again."
    )
    code = "CANCELED"


class JobTimeoutError(JobError, TimeoutError):
    """A handler ran for too long, or a result did not come in time."""

    description = "The job exceeded its time limit. Raise the timeout, or make the job faster."
    code = "TIMEOUT"
    retryable = True


class PermanentJobError(JobError, DontRetry):
    """Raised by a handler: the job fails now, however many attempts are left."""

    description = "Raise it with a message that says why another attempt is pointless."
    code = "PERMANENT"


# -- RPC and channels -----------------------------------------------------------------------------


class RpcError(MatadorError):
    """A call of a remote command failed."""


class RemoteError(RpcError):
    """The server answered with an error. `code` is its name there, `details` has further data from
    the server.

    Example:
        >>> raise RemoteError("ValidationError", "amount must be positive", {"field": "amount"})
        Traceback (most recent call last):
        matador.errors.RemoteError: ValidationError: amount must be positive
    """

    def __init__(self, code: str, message: str, details: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.remote_message = message
        self.details = details

    def as_dict(self) -> Mapping[str, object]:
        """The error as plain data, for logs and for JSON.

        Example:
            >>> RemoteError("NO_MONEY", "the card was declined").as_dict()["code"]
            'NO_MONEY'
        """
        return {**super().as_dict(), "code": self.code, "details": self.details}


class RpcTimeoutError(RpcError, builtins.TimeoutError):
    """The server did not reply in time. It may be down or busy, or may not know that the call is
    still wanted. A server that receives the call after its deadline does not run it."""


class ConnectionLostError(RpcError, builtins.ConnectionError):
    """The connection was lost before the reply came, so the call may or may not have run. Call
    again if running it twice does no harm."""


class QueueError(MatadorError):
    """An operation of a queue service failed. The cause says why.

    Attributes:
        queue_type: the type of the queue, such as `rabbitmq`.
        operation: what failed: `connect`, `send`, `publish` or `consume`.
        queue: the name of the queue, if any.
        message_id: the id of the message, if any.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        queue_type: str = "",
        operation: str = "",
        queue: str | None = None,
        message_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.queue_type = queue_type
        self.operation = operation
        self.queue = queue
        self.message_id = message_id

    def as_dict(self) -> Mapping[str, object]:
        """The error as plain data, for logs and for JSON.

        Example:
            >>> error.as_dict()["operation"], error.as_dict()["queue"]
            ('send', 'orders.created')
        """
        return {
            **super().as_dict(),
            "queue_type": self.queue_type,
            "operation": self.operation,
            "queue": self.queue,
            "message_id": self.message_id,
        }
