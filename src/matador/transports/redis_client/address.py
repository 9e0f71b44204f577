"""Reads what all addresses of a Redis server have: options, the database, files of TLS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl

from matador.errors import ConfigurationError
from matador.model.options import suggestion

SECONDS = ("lease", "timeout", "heartbeat")
TLS = ("tls_ca", "tls_cert", "tls_key", "tls_verify")
PORT = 6379


class Secured(Protocol):
    """An address that says how the server is checked, and who we are to it."""

    @property
    def tls_ca(self) -> str | None:
        """A file of certificates to trust; None: those of the system."""
        ...

    @property
    def tls_cert(self) -> str | None:
        """A file with our own certificate."""
        ...

    @property
    def tls_key(self) -> str | None:
        """A file with its key."""
        ...

    @property
    def tls_verify(self) -> bool:
        """False takes any certificate."""
        ...


def tls_options(url: Secured) -> dict[str, Any]:
    """As redis-py takes them."""
    return {
        "ssl_ca_certs": url.tls_ca,
        "ssl_certfile": url.tls_cert,
        "ssl_keyfile": url.tls_key,
        "ssl_cert_reqs": "required" if url.tls_verify else "none",
        "ssl_check_hostname": url.tls_verify,
    }


@dataclass(frozen=True, slots=True)
class Reader:
    """The options of an address. Errors name ``what`` was read, and never repeat the address."""

    what: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, what: str, parts: SplitResult, known: Sequence[str]) -> Reader:
        """The options behind the question mark.

        Raises:
            ConfigurationError: one that nobody knows, or is there twice.
        """
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                raise ConfigurationError(
                    f"{what}: unknown option {name!r}{suggestion(name, known)} "
                    f"(known: {', '.join(known)})"
                )
            if name in options:
                raise ConfigurationError(f"{what}: option {name!r} is there twice")
            options[name] = value
        return cls(what, options)

    def check_tls(self, has_tls: bool, how: str) -> None:
        """Are options of TLS there without TLS? ``how`` says what to write.

        Raises:
            ConfigurationError: yes.
        """
        given = [name for name in self.options if name in TLS]
        if given and not has_tls:
            raise ConfigurationError(f"{self.what}: {given[0]} needs TLS; {how}")

    def db(self, text: str) -> int:
        """The number of the database.

        Raises:
            ConfigurationError: it is none.
        """
        if text and not (text.isdecimal() and len(text) < 10):
            raise ConfigurationError(f"{self.what}: the database must be a number")
        return int(text or "0")

    def seconds(self) -> dict[str, float]:
        """What was given of ``SECONDS``.

        Raises:
            ConfigurationError: one is not a number.
        """
        found: dict[str, float] = {}
        for name in SECONDS:
            text = self.options.get(name)
            if text is None:
                continue
            try:
                found[name] = float(text)
            except ValueError:
                raise ConfigurationError(
                    f"{self.what}: {name} must be seconds, got {text!r}"
                ) from None
        return found

    def boolean(self, name: str, *, default: bool) -> bool:
        """An option that is true or false.

        Raises:
            ConfigurationError: it is neither.
        """
        text = self.options.get(name, str(default)).lower()
        if text not in ("true", "false", "1", "0"):
            raise ConfigurationError(f"{self.what}: {name} must be true or false, got {text!r}")
        return text in ("true", "1")

    def file(self, name: str) -> str | None:
        """The path of a file.

        Raises:
            ConfigurationError: there is no such file.
        """
        path = self.options.get(name)
        if path is not None and not Path(path).is_file():
            raise ConfigurationError(f"{self.what}: {name}: there is no file {path!r}")
        return path
