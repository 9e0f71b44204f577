"""Keeps passwords out of errors, logs, reprs and the output of commands.

``split_url`` splits an address so that everything outside its credentials may be shown.
``without_secrets`` masks the passwords in a text from another source.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult

from matador.errors import ConfigurationError

_HOST = re.compile(r"(?:[^:\[\]]*|\[[^\[\]]*\])(?::(\d{1,5}))?", re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Lengths are bounded, so that a hostile text cannot make the search slow.
_SECRETS = re.compile(
    # scheme://user:password@ - up to the last @ before a blank, or in quotes before the quote ends
    r"(?P<quoted>(?P<quote>['\"`])[a-z][\w+.-]{0,30}:/*[^\s:/?#@'\"`]{0,200}:)"
    r"(?:(?!(?P=quote)).){0,1000}@"
    r"|(?P<url>\b[a-z][\w+.-]{0,30}://+[^\s:/?#@]{0,200}:)\S{0,1000}@"
    # scheme://user:password - what follows the colon is not a port
    r"|(?P<open>\b[a-z][\w+.-]{0,30}://+[^\s:/?#@\[\]'\"]{0,200}:)"
    r"(?!\d{1,5}(?!\w)|//|\*\*\*)[^\s'\",)]+"
    # user:password@host, its scheme lost
    r"|(?P<bare>(?<![\w+.:/-])[\w.+-]{1,200}:)(?!//)[^\s/@'\"]{1,1000}@(?=[\w\[])"
    # password=…, in a query or a message
    r"|(?P<option>(?:password|passwd|passphrase|secret|token)=)[^\s&'\",;)]+",
    re.IGNORECASE,
)


def is_scheme(text: str) -> bool:
    """Whether a text may precede ``://``. Anything else may be a secret, and is not shown."""
    return _SCHEME.fullmatch(text) is not None


def split_url(url: str) -> SplitResult:
    """Split an address. Everything outside ``username`` and ``password`` may be shown.

    An address in which the password cannot be told from the rest is refused. Otherwise a part of
    the password could be read as a host, a path or an option, and appear in an error.

    Raises:
        ConfigurationError: the address is malformed. No part of it is repeated.

    Example:
        >>> split_url("amqp://me:pa:ss@host:5672/shop").password
        'pa:ss'
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not is_scheme(scheme):
        raise ConfigurationError("invalid address: write scheme://user:password@host:port/…")
    if _CONTROL.search(url):
        raise ConfigurationError(
            "the address contains a control character or a line break; "
            "was it read from a file without stripping the end of the line?"
        )
    end = min((at for mark in "/?" if (at := rest.find(mark)) >= 0), default=len(rest))
    authority, behind = rest[:end], rest[end:]
    credentials, at, hosts = authority.rpartition("@")
    if "@" in behind:
        raise ConfigurationError(
            "the address has an '@' after the host. If the password has special characters, "
            "write %23 for '#', %2F for '/', %3F for '?'; elsewhere write %40 for '@'"
        )
    if "#" in hosts + behind:
        raise ConfigurationError("the address has a '#'; write %23 if it belongs to a name")
    if not at and not all(map(_is_host, hosts.split(","))):
        # Not repeated: it may be a user and a password without a host.
        raise ConfigurationError(
            "invalid host and port: what follows ':' is not a port. "
            "A user and a password must be followed by '@' and a host"
        )
    path, _, query = behind.partition("?")
    netloc = f"{credentials}{at}{hosts}"
    return SplitResult(scheme.lower(), netloc, path, query, "")


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found[1] is None or 0 < int(found[1]) < 65536)


def without_secrets(text: str) -> str:
    """Mask the passwords in a text: those of addresses, and ``password=…``.

    For texts from other sources. It masks too much rather than too little: an unencoded ``/``,
    ``?``, ``#``, ``@``, ``:`` or ``[`` does not end a password.

    Example:
        >>> without_secrets("cannot reach amqp://me:se/cret@host/shop")
        'cannot reach amqp://me:***@host/shop'
    """
    return _SECRETS.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    kept = found["quoted"] or found["url"] or found["open"] or found["bare"] or found["option"]
    return f"{kept}***{'@' if found[0].endswith('@') else ''}"
