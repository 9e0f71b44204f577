"""The options of a job, checked as soon as they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict

from matador.codec.data import encode_data
from matador.errors import ConfigurationError, InvalidJobError
from matador.model.job import Keep
from matador.model.options import Seconds, optional_seconds, suggestion, whole_number
from matador.policy.backoff import Backoff, Exponential, Fixed
from matador.policy.retry import StandardRetryPolicy

_STANDARD = StandardRetryPolicy()
DEFAULT_ATTEMPTS = _STANDARD.max_attempts
DEFAULT_BACKOFF = Exponential(_STANDARD.base_delay, max_delay=_STANDARD.max_delay)
_LONGEST_KEY = 500
_LONGEST_DELAY = 1e9  # seconds: thirty years, which every provider can represent as a time


def read_backoff(text: object) -> Backoff:
    """The backoff in a header; the default one if there is none, or it cannot be read."""
    return _read_backoff(text) if isinstance(text, str) else DEFAULT_BACKOFF


@lru_cache(maxsize=256)  # every job has one, and most have the same
def _read_backoff(text: str) -> Backoff:
    kind, _, rest = text.partition(":")
    rest, _, given = rest.partition("~")
    try:
        jitter = float(given or 0)
        numbers = [float(part) / 1000 for part in rest.split(":")]
        if kind == "fixed":
            return Fixed(numbers[0], jitter=jitter)
        if kind == "exponential":
            longest = numbers[1] if len(numbers) > 1 else None
            return Exponential(numbers[0], max_delay=longest, jitter=jitter)
    except (ValueError, IndexError):
        pass  # another program wrote it
    return DEFAULT_BACKOFF


@dataclass(frozen=True, slots=True, init=False)
class Unique:
    """Prevents a job from being added while another job holds its key.

    Args:
        key: what must be unique in the queue.
        within: seconds for which the key is taken, independent of the job's outcome. Without it,
            the key is free once the job has completed or failed.
    """

    key: str
    within: float | None

    def __init__(self, key: str, *, within: Seconds | None = None) -> None:
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"Unique: key must be a non-empty string, got {key!r}")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "within", optional_seconds(within, "Unique: within"))


class JobOptions(TypedDict, total=False):
    """The options of ``Queue.add``, and of ``default_options``."""

    attempts: int
    backoff: Backoff | None
    delay: Seconds | datetime | None
    priority: int | None
    concurrency_key: str | None
    correlation_id: str | None
    unique: str | Unique | None
    remove_on_complete: bool | int | Keep
    remove_on_fail: bool | int | Keep
    metadata: Mapping[str, Any] | None
    provider_options: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The options, checked and complete."""

    attempts: int = DEFAULT_ATTEMPTS
    backoff: Backoff | None = None
    delay: float | datetime = 0.0
    priority: int | None = None
    concurrency_key: str | None = None
    correlation_id: str | None = None
    unique: Unique | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    metadata: Mapping[str, Any] | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


_KNOWN = frozenset(JobOptions.__annotations__)


def check_options(given: Mapping[str, Any], where: str) -> CheckedOptions:
    """Options as they were given, checked.

    Raises:
        InvalidJobError: names the place, the option and the given value.
    """
    try:
        return check_defaults(given, where)
    except ConfigurationError as error:
        raise InvalidJobError(str(error)) from None


def check_defaults(given: Mapping[str, Any], where: str) -> CheckedOptions:
    """``check_options`` for options of no particular job.

    Raises:
        ConfigurationError: names the place, the option and the given value.
    """
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        hint = suggestion(unknown[0], _KNOWN)
        raise ConfigurationError(f"{where}: unknown option {unknown[0]!r} (known: {known}){hint}")
    backoff, priority = given.get("backoff"), given.get("priority")
    if backoff is not None and not isinstance(backoff, Fixed | Exponential):
        raise ConfigurationError(
            f"{where}: backoff must be Fixed(…) or Exponential(…), got {backoff!r}"
        )
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ConfigurationError(f"{where}: priority must be a whole number, got {priority!r}")
    metadata, provider = given.get("metadata"), given.get("provider_options")
    for name, value in (("metadata", metadata), ("provider_options", provider)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigurationError(f"{where}: {name} must be a mapping, got {value!r}")
    own: Mapping[Any, Any] = provider or {}
    for name, value in own.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"{where}: the names of provider_options must be text")
        encode_data(value, f"{where}: provider_options[{name!r}]", ConfigurationError)
    unique = given.get("unique")
    for name in ("concurrency_key", "correlation_id"):
        key = given.get(name)
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY):
            raise ConfigurationError(
                f"{where}: {name} must be a string of 1 to {_LONGEST_KEY} characters, "
                f"got {key!r:.100}"
            )
    if unique is not None and not isinstance(unique, Unique):
        unique = Unique(unique)
    return CheckedOptions(
        attempts=whole_number(
            given.get("attempts", DEFAULT_ATTEMPTS), f"{where}: attempts", minimum=1
        ),
        backoff=backoff,
        delay=_delay(given.get("delay"), f"{where}: delay"),
        priority=priority,
        concurrency_key=given.get("concurrency_key"),
        correlation_id=given.get("correlation_id"),
        unique=unique,
        keep_completed=_keep(given, "remove_on_complete", where),
        keep_failed=_keep(given, "remove_on_fail", where),
        metadata=metadata,
        provider_options=own,
    )


_ON_REDIS = ("redis", "bullmq")
_PROVIDERS = ("memory", "sqlite", *_ON_REDIS, "rabbitmq", "sqs", "kafka")


def own_options(given: Mapping[str, Any], provider: str) -> Mapping[str, Any]:
    """The ``provider_options`` for one provider.

    Either the options themselves, ``{"lifo": True}``, or options by provider name, ``{"redis":
    {"lifo": True}, "sqs": {…}}``, of which each provider takes its own.
    """
    if not all(name in _PROVIDERS and isinstance(one, Mapping) for name, one in given.items()):
        return given
    called = _ON_REDIS if provider in _ON_REDIS else (provider,)
    mine: Mapping[str, Any] = {}
    return next((given[name] for name in called if name in given), mine)


def _delay(given: Seconds | datetime | None, what: str) -> float | datetime:
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigurationError(
                f"{what} must have a time zone, got {given!r}; write "
                f"datetime({given.year}, {given.month}, {given.day}, {given.hour}, tzinfo=UTC)"
            )
        return given
    try:
        delay = optional_seconds(given, what) or 0.0
    except ConfigurationError as error:
        if isinstance(given, int | float):
            raise
        raise ConfigurationError(f"{error}; a datetime with a time zone is a delay, too") from None
    return check_delay(delay, given, what)


def check_delay(delay: float, given: object, what: str) -> float:
    """Check that every provider can represent a delay as a time.

    Raises:
        ConfigurationError: it is too long.
    """
    if delay > _LONGEST_DELAY:
        raise ConfigurationError(
            f"{what} must be at most {_LONGEST_DELAY:,.0f} seconds (thirty years), got {given!r}"
        )
    return delay


def _keep(given: Mapping[str, Any], name: str, where: str) -> Keep | None:
    return Keep.of(given[name], f"{where}: {name}") if name in given else None


MakeId: TypeAlias = Callable[[str, Any], str]
"""Makes the id of a job from its name and its data."""


def check_id(job_id: object, where: str) -> str:
    """An id as it was given, checked.

    Raises:
        InvalidJobError: not a non-empty string, too long, or with control characters.
    """
    if not isinstance(job_id, str) or not job_id.strip():
        raise InvalidJobError(f"{where}: job_id must be a non-empty string, got {job_id!r}")
    if len(job_id) > 500 or not job_id.isprintable():
        raise InvalidJobError(
            f"{where}: job_id must have at most 500 printable characters, got {job_id[:50]!r}"
        )
    return job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """An option that the provider does not support and that was left out."""

    queue: str
    option: str
    value: Any
    message: str


OnUnsupported: TypeAlias = Callable[[Unsupported], object]
"""The type of ``on_unsupported=``."""
