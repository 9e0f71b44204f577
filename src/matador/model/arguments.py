"""Arguments that are objects, checked where they are given: one table for all classes.

Without this check, a wrong argument would fail later, while a message is handled. The error names
the argument and shows what to write instead. Objects are recognized by their attributes, so that
user-defined classes pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matador.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class _Kind:
    """The requirements for an argument.

    Attributes:
        what: in words.
        has: attributes that such an object has.
        form: what to write, for the value that was given instead.
    """

    what: str
    has: tuple[str, ...]
    form: Callable[[object], str]


def _number(value: object, otherwise: int) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_number else otherwise


def _store(kind: str) -> Callable[[object], str]:
    """A store in the place that a URL means. The URL is not repeated: it may have a password."""

    def form(value: object) -> str:
        if kind == "Checkpoint" and isinstance(value, str) and not value.startswith("redis"):
            return "SqliteCheckpointStore('steps.db')"
        return f"Redis{kind}Store('redis://localhost')"

    return form


def _topology(value: object) -> str:
    name = value if isinstance(value, str) and value.isidentifier() else "shop"
    return f"Topology({name!r}, queues=['events'])"


_KINDS: dict[str, _Kind] = {
    "retry": _Kind(
        "a retry policy",
        ("decide", "max_deliveries"),
        lambda value: f"StandardRetryPolicy(max_attempts={_number(value, 3)})",
    ),
    "codec": _Kind("a codec", ("encode", "decode_payload"), lambda _: "JsonCodec()"),
    "topology": _Kind("a Topology", ("namespace", "queues", "full_name"), _topology),
    "checkpoints": _Kind("a checkpoint store", ("load", "save", "keep"), _store("Checkpoint")),
    "store": _Kind("a store", ("begin", "finish", "forget"), _store("Duplicate")),
    "deduplication": _Kind(
        "a Deduplication",
        ("ttl", "max_keys"),
        lambda value: f"Deduplication(ttl={_number(value, 300)})",
    ),
    "ack": _Kind(
        "an AckStrategy",
        ("mode", "policy"),
        lambda value: f"AckStrategy(mode={value if value in ('auto', 'manual') else 'auto'!r})",
    ),
    "validation": _Kind(
        "a Validation",
        ("max_size", "malformed"),
        lambda value: f"Validation(max_size={_number(value, 1_000_000)})",
    ),
    "recovery": _Kind(
        "a Recovery", ("buffer", "reconnect"), lambda value: f"Recovery(buffer={value is True})"
    ),
    "circuit_breaker": _Kind(
        "a CircuitBreaker",
        ("threshold", "recovery_time"),
        lambda value: f"CircuitBreaker(threshold={_number(value, 5)})",
    ),
    "clock": _Kind("a clock", ("time", "monotonic"), lambda _: "TestClock()"),
}


def check_arguments(where: str, /, **given: object) -> None:
    """Check arguments by their names. None is always fine: it is the default.

    Raises:
        ConfigurationError: names the argument, and shows what to write.

    Example:
        >>> check_arguments("Matador", retry=3)
        Traceback (most recent call last):
        matador.errors.ConfigurationError: Matador: retry must be a retry policy, got 3; write
            retry=StandardRetryPolicy(max_attempts=3)
    """
    for name, value in given.items():
        if value is None:
            continue
        kind = _KINDS[name]
        if isinstance(value, type):
            got, form = f"the class {value.__name__}", f"{value.__name__}(…)"
        elif all(hasattr(value, one) for one in kind.has):
            continue
        else:
            got, form = _shown(value), kind.form(value)
        raise ConfigurationError(
            f"{where}: {name} must be {kind.what}, got {got}; write {name}={form}"
        )


def _shown(value: object) -> str:
    if isinstance(value, str) and "://" in value:
        return f"the URL {value.partition('://')[0]}://…"  # which may have a password
    return repr(value)
