"""Options that a provider does not support: a warning, a callback, and they are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from matador.errors import ConfigurationError

log = logging.getLogger("matador.jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """An option that the provider cannot honour, and that was left out."""

    queue: str
    option: str
    value: Any
    message: str


OnUnsupported: TypeAlias = Callable[[Unsupported], object]
"""What ``on_unsupported=`` takes."""


class UnsupportedOptions:
    """Reports the options that a queue or a worker cannot have. Each is logged once."""

    def __init__(self, queue: str, where: str, callback: OnUnsupported | None) -> None:
        if callback is not None and not callable(callback):
            raise ConfigurationError(f"{where} on_unsupported must be a function, got {callback!r}")
        self.callback = callback
        self._queue = queue
        self._where = where
        self._logged: set[str] = set()

    def report(self, option: str, value: Any, provider: str) -> None:
        """Say that an option is left out. A callback that raises is logged."""
        text = f"{self._where} the provider {provider!r} does not support {option!r}: it is ignored"
        if option not in self._logged:
            self._logged.add(option)
            log.warning("%s (said once)", text)
        if self.callback is not None:
            found = Unsupported(queue=self._queue, option=option, value=value, message=text)
            try:
                self.callback(found)
            except Exception:
                log.exception("%s on_unsupported raised an error", self._where)
