"""SQS addresses and their options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from matador.errors import ConfigurationError
from matador.model.options import Seconds
from matador.transports.credentials import split_url
from matador.transports.kit.options import (
    Reconnecting,
    ReconnectOptions,
    duration,
    flag,
    read_options,
    text,
    whole,
)

_FORM = "sqs://eu-west-1?endpoint=http://localhost:9324"
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)*")
_LONGEST_LEASE = 43_200  # seconds; the longest visibility timeout
_MOST_RECEIVES = 1000
_CREDENTIALS = (
    "{}: credentials do not belong in the address or among the options; they come from the usual "
    "AWS chain: AWS_ACCESS_KEY_ID or AWS_PROFILE, ~/.aws, or the role of the machine"
)


class SqsOptions(ReconnectOptions, total=False):
    """The options as keywords; each can be given in the address, too."""

    name: str
    region: str | None
    endpoint: str | None
    fifo: bool | None
    lease: Seconds | None
    wait: Seconds | None
    timeout: Seconds | None
    create: bool | None
    max_receives: int | None


@dataclass(frozen=True, kw_only=True)
class SqsAddress(Reconnecting):
    """An SQS address with its options; see ``SqsTransport``. There is no secret in it."""

    kind = "SQS"

    name: str = text("sqs", empty=False)
    region: str | None = text(None, empty=False)
    endpoint: str | None = text(None, empty=False)
    fifo: bool = flag(False)
    lease: float = duration(30.0, minimum=1)
    wait: float = duration(5.0)
    timeout: float = duration(10.0, minimum=0.1)
    create: bool = flag(True)
    max_receives: int = whole(100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise ConfigurationError(f"SQS: invalid region {self.region!r}; write {_FORM}")
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigurationError("SQS: endpoint must be a URL like http://localhost:9324")
            if parts.username is not None or parts.password is not None:
                raise ConfigurationError(_CREDENTIALS.format("SQS: endpoint"))
        if self.lease > _LONGEST_LEASE:
            raise ConfigurationError(
                f"SQS: lease must be at most {_LONGEST_LEASE} s (12 hours), got {self.lease:g}"
            )
        if self.max_receives > _MOST_RECEIVES:
            raise ConfigurationError(
                f"SQS: max_receives must be at most {_MOST_RECEIVES}, got {self.max_receives}"
            )
        # SQS counts whole seconds, and polls for at most 20.
        object.__setattr__(self, "lease", float(math.ceil(self.lease)))
        object.__setattr__(self, "wait", float(min(math.ceil(self.wait), 20)))

    @property
    def where(self) -> str:
        """The service in a few words: for logs and errors."""
        place = self.endpoint or self.region or "the default region"
        return f"SQS at {place}" if self.endpoint else f"SQS in {place}"


def read_sqs_address(url: str, given: Mapping[str, Any]) -> SqsAddress:
    """Read an address with its options; keywords win over what it says.

    Raises:
        ConfigurationError: it is malformed or has credentials, or an option is invalid.
    """
    if url.partition("://")[0].lower() != "sqs":
        raise ConfigurationError(f"not an address of SQS; write {_FORM}")
    parts = split_url(url)
    if "@" in parts.netloc:
        raise ConfigurationError(_CREDENTIALS.format("SQS"))
    for option in (*given, *(one.partition("=")[0] for one in parts.query.split("&"))):
        if re.search("key|secret|token|password|credential", option, re.IGNORECASE):
            raise ConfigurationError(_CREDENTIALS.format(f"SQS: {option[:40]}"))
    if parts.path.strip("/"):
        raise ConfigurationError(f"SQS: the address has a path; write {_FORM}")
    values: dict[str, Any] = {"region": parts.netloc} if parts.netloc else {}
    return SqsAddress(**(values | read_options(SqsAddress, parts.query, given)))
