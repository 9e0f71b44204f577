"""Every error Matador raises, each with its cause and what to do about it.

The whole tree::

    MatadorError
    ├── LifecycleError
    │   ├── NotStartedError                 the application was not started
    │   ├── ShuttingDownError               it is shutting down, or has
    │   ├── WrongLoopError                  it was started in another event loop
    │   └── TimeoutError                    something took too long (also a builtin one)
    ├── TransportError
    │   ├── NotConnectedError               there is no connection to the broker
    │   ├── TransportClosedError            the transport was closed
    │   ├── ConnectionFailedError           the broker could not be reached, or refused us
    │   ├── SendFailedError                 something of an event could not be stored
    │   │   ├── SendRefusedError            the broker refused it: it is not stored
    │   │   └── SendUnconfirmedError        the connection was lost meanwhile: it may be stored
    │   │       └── SendTimeoutError        no confirmation in time: it may be stored
    │   ├── AllTransportsFailedError        nor by any fall-back
    │   ├── DelaysNotSupportedError         the transport cannot keep a message for later
    │   ├── UnsupportedError                the transport lacks an ability that was asked for
    │   ├── QueueNotFoundError              no such queue
    │   ├── UnstorableError                 the broker can never store it: trying again is no use
    │   │   └── MessageTooLargeError        over the size limit
    │   ├── StorageFullError                the disk, or the broker, is full
    │   ├── StorageCorruptError             the file is not what it should be
    │   ├── StorageLockedError              another process keeps the file locked
    │   ├── LeaseLostError                  somebody else has this message by now
    │   └── MissingExtraError               the client library is not installed
    ├── SchemaError
    │   ├── InvalidSchemaError              all problems of a schema, at once
    │   ├── InvalidTopologyError            all problems of a topology, at once
    │   ├── EventNotRegisteredError         no such event in the schema
    │   ├── SubscriberNotRegisteredError    no such subscriber of that event
    │   ├── NoSubscribersError              the event has no subscriber
    │   ├── SubscriberIsStubError           a stub cannot be executed here
    │   └── InProcessCannotRunStubError     nor dispatched to by the in-process transport
    ├── InvalidEventError                   a payload that does not fit its type
    │   └── AmbiguousPayloadError           a JSON object in it has a key twice
    ├── DecodeError                         bytes that are not an envelope
    ├── ConfigurationError                  an option that cannot be (also a ValueError)
    ├── ApplicationImportError              the module of an application raised an error
    ├── ClusterError                        a Spark cluster could not do its work
    ├── SparkPreparationError               what lets Spark start sooner could not be made
    ├── MaybePoisonedError                  delivered too often
    ├── NonIdempotentCannotRetryError       redelivered, and not safe to run again
    ├── CheckpointError
    │   ├── DuplicateStepKeyError           io() called twice with one key
    │   └── CheckpointStoreError            the store failed
    │       ├── UnreadableStepValueError    what is stored of a step cannot be read
    │       └── UnstorableStepValueError    a step returned what cannot be stored
    ├── JobError
    │   ├── InvalidJobError                 an argument, or data that cannot be written
    │   ├── DuplicateJobError               a job with that id is there already
    │   │   └── UniqueJobError              another job has its unique key
    │   ├── JobsNotAddedError               some jobs of a batch were not stored
    │   ├── JobNotFoundError                no job with that id
    │   ├── JobStateError                   the job is not in a state for this
    │   ├── JobsUnsupportedError            the provider cannot do that
    │   ├── JobProviderError                the provider failed; the cause says why
    │   ├── JobFailedError                  the job whose result was awaited has failed
    │   ├── JobTimeoutError                 a job, or its result, took too long
    │   └── PermanentJobError               raised by a handler: do not retry
    ├── DoRetry                             raised by a callback: try again
    ├── DontRetry                           raised by a callback: never again
    └── EventAssertionError                 raised by a callback: this event is wrong
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_LONGEST = 300


class MatadorError(Exception):
    """The root of all errors of this package.

    ``description`` says what the error means and what to do about it; the message says what
    happened this time.

    Example:
        >>> from matador.errors import NotStartedError
        >>> NotStartedError().description
        'The application has not been started. Use `async with app:` or `await app.start()` first.'
    """

    description: ClassVar[str] = "Something went wrong in Matador."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else self.description)

    @property
    def name(self) -> str:
        """The name of the error, as it appears in logs and dead letters."""
        return type(self).__name__

    @property
    def message(self) -> str:
        """What happened this time."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled and copied by its parts: many errors take other arguments than their message.
        return _remade, (type(self), self.args), self.__dict__ or None

    def as_dict(self) -> Mapping[str, Any]:
        """The error as plain data, for logs and for JSON.

        Example:
            >>> DontRetry("card declined").as_dict()["name"]
            'DontRetry'
        """
        return {"name": self.name, "message": str(self), "description": self.description}


def _excerpt(text: str) -> str:
    """A text that may repeat what strangers wrote, as one short line that can be printed."""
    line = text[:_LONGEST]
    if not line.isprintable():
        line = "".join(one if one.isprintable() else _escaped(one) for one in line)
    return line if len(text) <= _LONGEST >= len(line) else f"{line[: _LONGEST - 1]}…"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _remade(kind: type[MatadorError], args: tuple[Any, ...]) -> MatadorError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# -- the application's life -------------------------------------------------------------------


class LifecycleError(MatadorError):
    """The application is not in a state to do this."""


class NotStartedError(LifecycleError):
    """An operation needs a started application."""

    description = (
        "The application has not been started. Use `async with app:` or `await app.start()` first."
    )


class ShuttingDownError(LifecycleError):
    """The application is shutting down, or has shut down."""

    description = (
        "The application is shutting down and accepts no new events. "
        "Send before the shutdown, or through another instance."
    )


class WrongLoopError(LifecycleError):
    """The application was started in another event loop, or another thread, than this one."""

    description = (
        "An application belongs to the event loop in which it was started. In another loop or "
        "thread use an application of its own (`app.producer()`), or `app.sync()`, which any "
        "thread may call."
    )


class TimeoutError(LifecycleError, builtins.TimeoutError):
    """Something took longer than it may. Also caught by ``except TimeoutError`` of the builtins."""

    description = (
        "The operation took longer than its time limit. Raise the limit, or find out what is slow."
    )


# -- transports -------------------------------------------------------------------------------


class TransportError(MatadorError):
    """The transport could not do what was asked."""

    description = "The transport failed. See the cause."


class NotConnectedError(TransportError):
    """There is no connection to the broker."""

    description = (
        "The transport is not connected. Start the application first; if it was started, "
        "the broker is unreachable: check that it runs and that the URL is right."
    )


class TransportClosedError(TransportError):
    """The transport was closed on purpose."""

    description = "The transport has been closed. Start the application again to use it."


class ConnectionFailedError(TransportError):
    """The broker could not be reached, or refused the connection."""

    description = (
        "The connection to the broker could not be made. "
        "Check host, port, credentials and that the broker runs."
    )


class SendFailedError(TransportError):
    """Not all of an event could be stored; or, in ``SendResult.errors``, one message of it.

    Attributes:
        result: the ``SendResult`` of the event: what was stored, and every error. Raised by
            ``send_many``, it is that of the first event that failed.
        results: the results of all events of ``send_many``, in order; of ``send``, the one.
        subscriber, queue: the message that could not be stored; of several, the first.
        unknown: whether a message may be stored all the same, so that sending again may make two.

    What the transport said about that message is the cause (``__cause__``). For an error in
    ``SendResult.errors``, ``result`` is None and ``results`` is empty.

    Example:
        >>> try:
        ...     await app.send(OrderPlaced("1", 5))
        ... except SendFailedError as error:
        ...     print(error.result.sent, [one.subscriber for one in error.result.errors])
    """

    description = (
        "Not everything that was sent is confirmed as stored; `result` says what is. Where the "
        "outcome is unknown the message may be stored: sending it again may make two of it."
    )

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
    """The broker refused the message: it is not stored."""

    description = (
        "The broker refused the message, so it is not stored. A queue with a length limit may be "
        "full (`x-overflow: reject-publish`): consume it, or raise the limit."
    )


class SendUnconfirmedError(SendFailedError):
    """The connection was lost before the broker confirmed the message: it may be stored."""

    description = (
        "The connection to the broker was lost before it confirmed the message, so the message may "
        "or may not be stored. Send it again if arriving twice does no harm."
    )


class SendTimeoutError(SendUnconfirmedError, builtins.TimeoutError):
    """The broker did not confirm the message in time: it may be stored."""

    description = (
        "The broker did not confirm the message in time, so the message may or may not be stored. "
        "The broker is overloaded or blocks publishers (memory or disk alarm): look at its logs."
    )


class AllTransportsFailedError(TransportError):
    """The chosen transport and every fall-back failed; ``errors`` has each reason by name."""

    description = (
        "No transport of the group could store the message. "
        "Check each of them: the causes are listed."
    )

    def __init__(self, errors: Sequence[tuple[str, BaseException]]) -> None:
        listed = "; ".join(f"{name}: {error}" for name, error in errors)
        super().__init__(f"all transports failed: {listed}")
        self.errors = tuple(errors)


def may_be_stored(error: BaseException | None) -> bool:
    """Does this error of a send leave open whether the message was stored?"""
    if isinstance(error, AllTransportsFailedError):
        return any(may_be_stored(one) for _, one in error.errors)
    return isinstance(error, SendUnconfirmedError) or getattr(error, "unknown", False)


class UnsupportedError(TransportError):
    """The transport does not have the ability that was asked for."""

    description = (
        "This transport cannot do that. `transport.capabilities` says what it can; "
        "choose another transport or do without."
    )


class DelaysNotSupportedError(UnsupportedError):
    """The transport cannot keep a message for later."""

    description = (
        "This transport cannot delay messages safely. Send without a delay, use a transport that "
        'can, or pass `unsupported_delays="deliver-now"` to have them delivered at once.'
    )


class QueueNotFoundError(TransportError):
    """No such queue."""

    description = (
        "The queue does not exist. Add it to the topology, or apply the topology "
        "(`matador topology apply`) if it was added lately."
    )


class UnstorableError(TransportError):
    """The broker can never store this message in this form, however often it is tried."""

    description = (
        "The message cannot be stored by this broker: a part of it is too long or cannot be "
        "encoded. Sending it again does not help; the message says which part it is."
    )


class MessageTooLargeError(UnstorableError):
    """A message is over the size limit; nothing was sent."""

    description = (
        "The message is larger than the limit. Send a reference to the data instead of the data, "
        "compress it (`codec=CompressedCodec(...)`), or raise `max_message_size`."
    )

    def __init__(self, size: int, limit: int, *, what: str = "message", why: str = "") -> None:
        super().__init__(f"the {what} has {size:,} bytes, the limit is {limit:,} bytes{why}")
        self.size = size
        self.limit = limit


class StorageFullError(TransportError):
    """The disk or the broker is full. What was stored before is intact."""

    description = "There is no room to store the message. Free some space; nothing was damaged."


class StorageCorruptError(TransportError):
    """The file is not a Matador database, or it is damaged."""

    description = (
        "The file cannot be read as a Matador database. Point the URL at another file, "
        "or restore this one from a backup."
    )


class StorageLockedError(TransportError):
    """Another process held the write lock for too long. Nothing was changed."""

    description = (
        "The database file is locked by another process. Look for one that keeps a transaction "
        "open (a shell, a backup), or raise `busy_timeout`."
    )


class LeaseLostError(TransportError):
    """The message was held for too long without a renewal and belongs to somebody else now."""

    description = (
        "The lease on the message was lost before it was settled (the process was frozen, or the "
        "machine slept). The settlement was refused; the message is handled by another worker."
    )


class MissingExtraError(TransportError):
    """The client library of a broker is not installed."""

    description = "An optional dependency is missing. Install the extra named in the message."

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'matador-events[{extra}]'")
        self.extra = extra


# -- schema and topology ----------------------------------------------------------------------


class SchemaError(MatadorError):
    """Events, subscribers or queues do not fit together."""


class InvalidSchemaError(SchemaError):
    """A schema with problems; ``problems`` lists every one."""

    description = "The schema is not valid. Fix every problem listed."

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"Schema validation failed:{listed}")
        self.problems = tuple(problems)


class InvalidTopologyError(SchemaError):
    """A topology with problems; ``problems`` lists every one."""

    description = "The topology is not valid. Fix every problem listed."

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"Topology validation failed:{listed}")
        self.problems = tuple(problems)


class EventNotRegisteredError(SchemaError):
    """The schema has no such event."""

    description = "The event is not in the schema. Add it to the `Schema`, or correct the key."


class SubscriberNotRegisteredError(SchemaError):
    """The event has no such subscriber."""

    description = (
        "The event has no subscriber of that name. It may have been renamed, or this worker runs "
        "older code than the sender: deploy it, then redrive the unhandled messages."
    )


class NoSubscribersError(SchemaError):
    """The event has no subscribers."""

    description = "The event has no subscribers, so there is nobody to send it to. Add one."


class SubscriberIsStubError(SchemaError):
    """A stub was asked to run."""

    description = (
        "The subscriber is a stub: its code lives in another service. Let that service consume "
        "the queue, give the stub a queue of its own, or register the real subscriber here."
    )


class InProcessCannotRunStubError(SchemaError):
    """The in-process transport was given a message for a stub."""

    description = (
        "The in-process transport delivers only within this process, and a stub's code is "
        "elsewhere: the message could never be handled. Use a transport both services can reach."
    )


# -- messages ---------------------------------------------------------------------------------


class InvalidEventError(MatadorError):
    """A payload that does not fit its event type; the message names the field."""

    description = "The payload does not fit the event's type. Correct the field that is named."


class AmbiguousPayloadError(InvalidEventError):
    """A payload in which one JSON object has a key twice: parsers disagree about what it says."""

    description = (
        "The payload has a key twice in one object, so it is not clear what it says. "
        "Correct the program that sent it."
    )


class DecodeError(MatadorError):
    """Bytes that are not an envelope. The message is short and printable, whatever they were."""

    description = (
        "The message could not be decoded. It is kept as it is in the dead letters; "
        "find out who sent it, or configure the codec it was written with."
    )

    def __init__(self, message: str | None = None) -> None:
        super().__init__(None if message is None else _excerpt(message))


class ConfigurationError(MatadorError, ValueError):
    """An option that cannot be. Also a ``ValueError``."""

    description = "An option has a value that cannot be. The message names it."


class ApplicationImportError(MatadorError):
    """The module of an application raised an error while it was imported."""

    description = "The application's module cannot be imported. The message names the line."


class ClusterError(MatadorError):
    """A Spark cluster failed again and again to do what it was given."""

    description = (
        "What was given to the Spark cluster failed again and again. The message has the last "
        "reason; the logs of the executors have more."
    )


class SparkPreparationError(MatadorError):
    """What lets Spark start sooner could not be made."""

    description = (
        "Spark could not be prepared on this machine; it starts all the same, only slower. The "
        "message says why: often the folder for caches cannot be written (see MATADOR_CACHE)."
    )


class MaybePoisonedError(MatadorError):
    """A message was delivered too often without an outcome: it may kill its worker."""

    description = (
        "The message was delivered many times and never settled, so it may crash whoever handles "
        "it. Look at the payload and the worker's logs before redriving it."
    )


class NonIdempotentCannotRetryError(MatadorError):
    """A message came a second time to a subscriber that must not run twice."""

    description = (
        "The message was delivered before, and its subscriber is not declared safe to run again. "
        'Check what it did; declare it `idempotent="yes"` or `"resumable"` if it can be repeated.'
    )


# -- resumable subscribers --------------------------------------------------------------------


class CheckpointError(MatadorError):
    """A resumable subscriber could not keep or find its steps."""


class DuplicateStepKeyError(CheckpointError):
    """``io()`` was called twice with the same key in one run."""

    description = (
        "Two steps of one run have the same key, so their results cannot be told apart. "
        "Give each step a key of its own, stable between attempts."
    )


class CheckpointStoreError(CheckpointError):
    """The checkpoint store failed."""

    description = "The checkpoint store failed. Check that it is reachable and has room."


class UnreadableStepValueError(CheckpointStoreError):
    """What is stored of a step cannot be read here. The step is not run again for that."""

    description = (
        "The stored result of a step is damaged, was made by another version of its class, or "
        "names a class that this process has not loaded: none is imported because a store says so. "
        "Define the class at the top of the subscriber's module, or import it there."
    )


# -- control of retries -----------------------------------------------------------------------


class DoRetry(MatadorError):
    """Raise it in a callback to have the message retried, idempotent or not.

    Example:
        >>> raise DoRetry("the gateway is down for a minute")
        Traceback (most recent call last):
        matador.errors.DoRetry: the gateway is down for a minute
    """

    description = "The subscriber asked for another attempt, whatever its idempotency."


class DontRetry(MatadorError):
    """Raise it in a callback to send the message to the dead letters at once.

    Example:
        >>> raise DontRetry("the card was declined")
        Traceback (most recent call last):
        matador.errors.DontRetry: the card was declined
    """

    description = "The subscriber said that another attempt is of no use."


class UnstorableStepValueError(CheckpointStoreError, DontRetry):
    """A step returned a value that cannot be stored. Not retried: the step has had its effect."""

    description = (
        "A step's result must be JSON data, or a dataclass, msgspec, pydantic or attrs object. "
        "Return something simpler from the step, for example an id."
    )


class EventAssertionError(MatadorError, AssertionError):
    """The event is not what the subscriber was promised. Never retried.

    ``envelope`` is the one in question, if it was given.
    """

    description = "An assertion about the event failed; trying again would fail again."

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
    """Something about a job, or a queue of jobs.

    Attributes:
        type: what kind of problem it is, the same for every provider.
        code: which one.
        retryable: doing the same again may succeed.
        queue: the name of the queue, if it is about one.
        job_id: the id of the job, if it is about one.
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

    def as_dict(self) -> Mapping[str, Any]:
        """The error as plain data, for logs and for JSON."""
        fields = {"type": self.type, "code": self.code, "retryable": self.retryable}
        return {**super().as_dict(), **fields, "queue": self.queue, "job_id": self.job_id}


class InvalidJobError(JobError, ValueError):
    """An argument that cannot be, or data that cannot be written as JSON."""

    description = "Nothing was stored. Correct the argument that the message names."
    type = "DataError"
    code = "VALIDATION"


class DuplicateJobError(JobError):
    """A job with that id is in the queue already. The new one was not stored."""

    description = "The queue has a job with this id. Choose another id, or remove that job first."
    type = "DataError"
    code = "DUPLICATE"


class UniqueJobError(DuplicateJobError):
    """Another job has the unique key. ``job_id`` is that of the other one."""

    description = "The job was not added: another one with its unique key is there."
    code = "NOT_UNIQUE"


class JobsNotAddedError(JobError):
    """Some jobs of a batch could not be added.

    Attributes:
        errors: why, by their place in the batch. All others were added.
    """

    description = "Add those that `errors` names again; the others are stored."
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
        """The id that was looked for."""
        return self.job_id

    @property
    def resource_type(self) -> str:
        """Always ``job``."""
        return "job"


class JobStateError(JobError):
    """The job is not in a state for this."""

    description = "Only failed jobs can be retried, and active ones cannot be removed."
    type = "DataError"
    code = "STATE"


class JobsUnsupportedError(JobError):
    """The provider cannot do that."""

    description = "`queue.capabilities` says what the provider can do."
    type = "ConfigurationError"
    code = "UNSUPPORTED_FEATURE"


class JobProviderError(JobError):
    """The provider failed. The cause says why."""

    description = "The provider could not do it now. Look at the cause, then try again."
    code = "PROVIDER"
    retryable = True


class JobFailedError(JobError):
    """The job whose result was awaited has failed for good. The message is its last error."""

    description = "The job failed in its last attempt. `queue.retry(job_id)` runs it again."
    code = "FAILED"


class JobTimeoutError(JobError, TimeoutError):
    """A handler ran for too long, or a result did not come in time."""

    description = "It took longer than allowed. Raise the timeout, or make it quicker."
    code = "TIMEOUT"
    retryable = True


class PermanentJobError(JobError):
    """Raised by a handler: the job fails now, however many attempts are left."""

    description = "Raise it with a message that says why another attempt is pointless."
    code = "PERMANENT"
