"""The options of a job, checked as soon as they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict

from matador.errors import ConfigurationError, InvalidJobError
from matador.model.job import Keep
from matador.model.options import Seconds, optional_seconds, seconds, whole_number

DEFAULT_ATTEMPTS = 3
_LONGEST_KEY = 500


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """Retry after the same wait each time.

    Example:
        >>> Fixed(5).wait(attempt=3)
        5.0
    """

    delay: float

    def __init__(self, delay: Seconds) -> None:
        object.__setattr__(self, "delay", seconds(delay, "Fixed: delay"))

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt with that number, from 1."""
        return self.delay

    @property
    def text(self) -> str:
        """As it travels in a header."""
        return f"fixed:{round(self.delay * 1000)}"


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Retry after a wait that doubles each time, up to ``max_delay``.

    Example:
        >>> [Exponential(1, max_delay=3).wait(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 3.0]
    """

    delay: float
    max_delay: float | None

    def __init__(self, delay: Seconds = 1.0, *, max_delay: Seconds | None = None) -> None:
        object.__setattr__(self, "delay", seconds(delay, "Exponential: delay"))
        longest = optional_seconds(max_delay, "Exponential: max_delay")
        object.__setattr__(self, "max_delay", longest)

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt with that number, from 1."""
        grown = self.delay * 2.0 ** min(max(0, attempt - 1), 64)
        return grown if self.max_delay is None else min(grown, self.max_delay)

    @property
    def text(self) -> str:
        """As it travels in a header."""
        longest = "" if self.max_delay is None else f":{round(self.max_delay * 1000)}"
        return f"exponential:{round(self.delay * 1000)}{longest}"


Backoff: TypeAlias = Fixed | Exponential

DEFAULT_BACKOFF = Exponential(1.0)


def read_backoff(text: object) -> Backoff:
    """The backoff in a header; the default one if there is none, or it cannot be read."""
    return _read_backoff(text) if isinstance(text, str) else DEFAULT_BACKOFF


@lru_cache(maxsize=256)  # every job has one, and most have the same
def _read_backoff(text: str) -> Backoff:
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) / 1000 for part in rest.split(":")]
        if kind == "fixed":
            return Fixed(numbers[0])
        if kind == "exponential":
            return Exponential(numbers[0], max_delay=numbers[1] if len(numbers) > 1 else None)
    except (ValueError, IndexError):
        pass  # whoever wrote it: the default is as good as any
    return DEFAULT_BACKOFF


@dataclass(frozen=True, slots=True, init=False)
class Unique:
    """Keeps a job from being added while another one has its key.

    Args:
        key: what must be unique in the queue.
        within: seconds for which the key is taken, whatever becomes of the job. Without it, the
            key is free again as soon as the job has completed or failed.
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
    delay: Seconds | None
    priority: int | None
    concurrency_key: str | None
    unique: str | Unique | None
    remove_on_complete: bool | int | Keep
    remove_on_fail: bool | int | Keep
    metadata: Mapping[str, Any] | None
    provider_options: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The same, checked and complete."""

    attempts: int = DEFAULT_ATTEMPTS
    backoff: Backoff | None = None
    delay: float = 0.0
    priority: int | None = None
    concurrency_key: str | None = None
    unique: Unique | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    metadata: Mapping[str, Any] | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


_KNOWN = frozenset(JobOptions.__annotations__)


def check_options(given: Mapping[str, Any], where: str) -> CheckedOptions:
    """Options as they were given, checked.

    Raises:
        InvalidJobError: names the place, the option and what was given.
    """
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise InvalidJobError(f"{where}: unknown option {unknown[0]!r} (known: {_listed()})")
    try:
        return _checked(given, where)
    except ConfigurationError as error:
        raise InvalidJobError(str(error)) from None


def _checked(given: Mapping[str, Any], where: str) -> CheckedOptions:
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
        if not isinstance(name, str) or not isinstance(value, str | int):
            raise ConfigurationError(
                f"{where}: provider_options[{name!r}] must be text or a whole number, got {value!r}"
            )
    key, unique = given.get("concurrency_key"), given.get("unique")
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY):
        raise ConfigurationError(
            f"{where}: concurrency_key must be a string of 1 to {_LONGEST_KEY} characters, "
            f"got {key!r:.100}"
        )
    if unique is not None and not isinstance(unique, Unique):
        unique = Unique(unique)
    return CheckedOptions(
        attempts=whole_number(
            given.get("attempts", DEFAULT_ATTEMPTS), f"{where}: attempts", minimum=1
        ),
        backoff=backoff,
        delay=optional_seconds(given.get("delay"), f"{where}: delay") or 0.0,
        priority=priority,
        concurrency_key=key,
        unique=unique,
        keep_completed=_keep(given, "remove_on_complete", where),
        keep_failed=_keep(given, "remove_on_fail", where),
        metadata=metadata,
        provider_options=own,
    )


def _keep(given: Mapping[str, Any], name: str, where: str) -> Keep | None:
    return Keep.of(given[name], f"{where}: {name}") if name in given else None


def _listed() -> str:
    return ", ".join(sorted(_KNOWN))


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
