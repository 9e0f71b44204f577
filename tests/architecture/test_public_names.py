"""Pins what users see: names, signatures, docstrings, errors. A change here is one for them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Coroutine, Iterator
from types import ModuleType
from typing import Any, Protocol, cast, get_args, get_origin, get_type_hints

import pytest

import matador
import matador.errors
import matador.testing
import matador.transports
from matador import Docket, Envelope, Hooks, Matador, SendResult, channels
from matador.errors import MatadorError
from matador.runtime.activity import AppState

NAMES = {
    "matador": [
        "Attempt",
        "Capabilities",
        "CheckpointEvent",
        "CheckpointStore",
        "CompressedCodec",
        "ConnectionChange",
        "Context",
        "DeadLetterQueue",
        "DeadLetters",
        "Deduplication",
        "Deduplicator",
        "Discard",
        "DoRetry",
        "Docket",
        "DontRetry",
        "DuplicateStore",
        "Envelope",
        "EventAssertionError",
        "EventType",
        "Handled",
        "HeaderCodec",
        "Health",
        "Hooks",
        "JsonCodec",
        "KeyedMessage",
        "Matador",
        "MatadorError",
        "MemoryCheckpointStore",
        "MemoryDuplicateStore",
        "MessagePackCodec",
        "Metrics",
        "NoCheckpointStore",
        "NotSent",
        "Received",
        "RedisCheckpointStore",
        "RedisDuplicateStore",
        "RetryContext",
        "RetryLater",
        "RetryPolicy",
        "RetryQueues",
        "Schema",
        "SendOptions",
        "SendResult",
        "SendToDeadLetters",
        "Sent",
        "Shutdown",
        "SqliteCheckpointStore",
        "StandardRetryPolicy",
        "Subscriber",
        "SubscriberStub",
        "SyncContext",
        "SyncMatador",
        "Topology",
        "TransportFallback",
        "WorkQueue",
        "assert_event",
        "event",
        "subscriber",
    ],
    "matador.transports": [
        "BullMQTransport",
        "KafkaTransport",
        "MemoryTransport",
        "MultiTransport",
        "RabbitMQTransport",
        "RedisTransport",
        "SqliteTransport",
        "SqsTransport",
        "Subscription",
        "Transport",
        "transport_from_url",
    ],
    "matador.testing": [
        "AppHarness",
        "ChannelHarness",
        "DeadLettered",
        "Harness",
        "JobHarness",
        "ManualClock",
        "PubSubHarness",
        "RpcHarness",
        "TransportCompliance",
        "make_context",
        "make_delivery",
        "make_docket",
        "make_envelope",
        "make_job",
        "make_message",
        "make_message_context",
        "make_receipt",
        "make_rpc_context",
        "running",
        "wait_for",
    ],
}

# Every error a user may want to catch; more may be added, none may go.
ERRORS = {
    "AllTransportsFailedError",
    "CheckpointError",
    "CheckpointStoreError",
    "ConfigurationError",
    "ConnectionFailedError",
    "DecodeError",
    "DelaysNotSupportedError",
    "DoRetry",
    "DontRetry",
    "DuplicateStepKeyError",
    "EventAssertionError",
    "EventNotRegisteredError",
    "InProcessCannotRunStubError",
    "InvalidEventError",
    "InvalidSchemaError",
    "InvalidTopologyError",
    "LeaseLostError",
    "LifecycleError",
    "MatadorError",
    "MaybePoisonedError",
    "MessageTooLargeError",
    "MissingExtraError",
    "NoSubscribersError",
    "NonIdempotentCannotRetryError",
    "NotConnectedError",
    "NotConsumedHereError",
    "NotStartedError",
    "QueueNotFoundError",
    "SchemaError",
    "SendFailedError",
    "SendRefusedError",
    "SendTimeoutError",
    "SendUnconfirmedError",
    "ShuttingDownError",
    "StorageCorruptError",
    "StorageFullError",
    "SubscriberIsStubError",
    "SubscriberNotRegisteredError",
    "TimeoutError",
    "TransportClosedError",
    "TransportError",
    "UnreadableStepValueError",
    "UnstorableError",
    "UnstorableStepValueError",
    "UnsupportedError",
    "WrongLoopError",
}


def errors() -> dict[str, type[MatadorError]]:
    return {
        name: value
        for name, value in vars(matador.errors).items()
        if inspect.isclass(value) and issubclass(value, MatadorError)
    }


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_these(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(NAMES[module])
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None


@pytest.mark.parametrize("module", ["matador.transports", "matador.testing"])
def test_a_name_that_is_not_there_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = importlib.import_module(module).Nonsense


def test_no_error_has_gone() -> None:
    assert set(errors()) >= ERRORS


def test_the_tree_at_the_top_of_errors_lists_exactly_the_errors_there_are() -> None:
    drawn = re.findall(r"^    [ │├└─]*([A-Z]\w+)", matador.errors.__doc__ or "", re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == set(errors())


# -- docstrings --------------------------------------------------------------------------------


def public_things() -> Iterator[tuple[str, Any]]:
    modules: list[ModuleType] = [matador, matador.transports, matador.testing]
    for module in modules:
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for name, error in errors().items():
        yield f"matador.errors.{name}", error


def members(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties a class of ours defines itself."""
    for base in inspect.getmro(thing) if inspect.isclass(thing) else ():
        if base.__module__.startswith("matador."):
            for name, value in vars(base).items():
                inner = getattr(value, "__func__", value)
                if not name.startswith("_") and (
                    inspect.isfunction(inner) or isinstance(value, property)
                ):
                    yield f"{base.__name__}.{name}", value


def promised() -> set[str]:
    """The methods of our protocols: who implements one need not repeat what it says."""
    protocols = [one for one in Protocol.__subclasses__() if one.__module__.startswith("matador.")]
    return {name for one in protocols for name in vars(one)}


PUBLIC = dict(public_things())


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_a_docstring(name: str) -> None:
    thing = PUBLIC[name]
    if name == "matador.testing.TransportCompliance":
        assert inspect.getdoc(thing)
        return  # its methods are tests: their names say it
    missing = [member for member, value in members(thing) if not inspect.getdoc(value)]
    missing = [one for one in missing if one.partition(".")[2] not in promised()]
    assert thing.__doc__
    assert missing == []


@pytest.mark.parametrize("error", errors().values(), ids=lambda error: error.__name__)
def test_every_error_says_what_it_means(error: type[MatadorError]) -> None:
    assert error.description
    assert error.description.endswith((".", "`"))


# -- signatures --------------------------------------------------------------------------------

REQUIRED = inspect.Parameter.empty
KEYWORD, ANY = "keyword", "any"

SIGNATURES: dict[str, dict[str, tuple[str, Any]]] = {
    "event": {
        "key": (ANY, REQUIRED),
        "description": (KEYWORD, REQUIRED),
        "aliases": (KEYWORD, ()),
    },
    "subscriber": {
        "description": (KEYWORD, REQUIRED),
        "idempotent": (KEYWORD, "unknown"),
        "importance": (KEYWORD, "should-investigate"),
        "queue": (KEYWORD, None),
        "enabled": (KEYWORD, None),
        "delivery": (KEYWORD, None),
        "name": (KEYWORD, None),
    },
    "SubscriberStub": {
        "name": (ANY, REQUIRED),
        "description": (KEYWORD, REQUIRED),
        "queue": (KEYWORD, None),
    },
    "Topology": {
        "namespace": (ANY, REQUIRED),
        "queues": (KEYWORD, ()),
        "dead_letters": (KEYWORD, None),
        "retry": (KEYWORD, None),
    },
    "WorkQueue": {
        "name": (ANY, REQUIRED),
        "concurrency": (KEYWORD, None),
        "consumer_timeout": (KEYWORD, None),
        "priorities": (KEYWORD, False),
        "exact": (KEYWORD, False),
        "retention": (KEYWORD, None),
    },
    "RetryQueues": {"default_delay": (KEYWORD, 1), "max_delay": (KEYWORD, 300)},
    "StandardRetryPolicy": {
        "max_attempts": (ANY, 3),
        "base_delay": (ANY, 1),
        "max_delay": (ANY, 300),
        "multiplier": (ANY, 2),
        "jitter": (ANY, 0),
        "max_deliveries": (ANY, 5),
    },
    "Matador": {
        "transport": (ANY, REQUIRED),
        "schema": (KEYWORD, REQUIRED),
        "topology": (KEYWORD, None),
        "consume_from": (KEYWORD, ()),
        "codec": (KEYWORD, None),
        "retry": (KEYWORD, None),
        "delivery": (KEYWORD, "at-least-once"),
        "shutdown": (KEYWORD, None),
        "checkpoints": (KEYWORD, None),
        "hooks": (KEYWORD, None),
    },
    "Matador.send": {
        "metadata": (KEYWORD, None),
        "correlation_id": (KEYWORD, None),
        "delay": (KEYWORD, None),
        "before": (KEYWORD, None),
        "priority": (KEYWORD, None),
        "ordering_key": (KEYWORD, None),
    },
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_keeps_its_names_and_defaults(name: str) -> None:
    thing: Any = matador
    for part in name.split("."):
        thing = getattr(thing, part)
    found = inspect.signature(thing).parameters
    for parameter, (kind, default) in SIGNATURES[name].items():
        assert found[parameter].default == default, parameter
        is_keyword = found[parameter].kind is inspect.Parameter.KEYWORD_ONLY
        assert is_keyword == (kind == KEYWORD), parameter


@pytest.mark.parametrize("name", ["send", "wait_idle", "send_many", "pause", "resume", "shutdown"])
def test_the_sync_application_has_the_same_signatures(name: str) -> None:
    ours = inspect.signature(getattr(Matador, name)).parameters
    sync = inspect.signature(getattr(matador.SyncMatador, name)).parameters
    assert [(p.name, p.kind, p.default) for p in sync.values()] == [
        (p.name, p.kind, p.default) for p in ours.values()
    ]


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            Matador,
            (
                "start shutdown send send_many state wait_idle pause resume schema topology "
                "transport run sync __aenter__ __aexit__"
            ),
        ),
        (AppState, "is_idle processing enqueuing"),
        (SendResult, "event_key sent skipped errors"),
        (Envelope, "id data before docket"),
        (
            Docket,
            (
                "event_key event_description target_subscriber original_queue scheduled_for "
                "attempts created_at first_error last_error importance correlation_id metadata"
            ),
        ),
        (
            Hooks,
            (
                "on_enqueue_success on_enqueue_warning on_enqueue_error on_transport_fallback "
                "on_worker_wrap on_worker_before_process on_worker_success on_worker_error "
                "on_decode_error on_connection_state_change on_checkpoint_loaded on_checkpoint_hit "
                "on_checkpoint_miss on_checkpoint_cleared load_universal_metadata "
                "get_queue_concurrency get_retry_delay get_attempts get_max_deliveries"
            ),
        ),
        (matador.Context, "io all send"),
        (matador.SyncContext, "io all send"),
        (matador.Schema, "with_plugin"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_promised_is_there(owner: type, names: str) -> None:
    assert [name for name in names.split() if not hasattr(owner, name)] == []


def _mentions_any(hint: Any) -> bool:
    """What a coroutine yields to its event loop, and gets from there, does not count."""
    if hint is Any:
        return True
    parts = cast("list[Any]", hint) if isinstance(hint, list) else get_args(hint)
    return any(map(_mentions_any, parts[2:] if get_origin(hint) is Coroutine else parts))


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        made = getattr(module, name)
        if not inspect.isclass(made):
            yield name, made
            continue
        for method, found in inspect.getmembers(made):
            function: Any = found.fget if isinstance(found, property) else found
            is_ours = str(getattr(function, "__module__", "")).startswith("matador.")
            is_public = method == "__init__" or not method.startswith("_")
            if inspect.isroutine(function) and is_ours and is_public:
                yield f"{name}.{method}", function


def test_nothing_public_in_channels_takes_or_returns_any() -> None:
    names: set[str] = set()
    for name, function in _functions(channels):
        names.add(name)
        hints = get_type_hints(function)
        assert not [one for one, hint in hints.items() if _mentions_any(hint)], name
    assert names >= {"consume", "MessageContext.send", "MessageContext.all"}
