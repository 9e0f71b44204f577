"""Writes plain data as YAML, without a library: block style, and texts as JSON writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

_PLAIN = re.compile(r"[A-Za-z_$][\w$./ -]*(?<! )", re.ASCII)
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def yaml_text(value: Any) -> str:
    """The value as a YAML document. JSON data only.

    Example:
        >>> print(yaml_text({"queues": ["events"], "note": "a: b"}), end="")
        queues:
          - events
        note: "a: b"
    """
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in cast("dict[str, Any]", value).items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", one, indent)
    elif isinstance(value, list) and value:
        for one in cast("list[Any]", value):
            first, *rest = list(_lines(one, indent + "  "))
            yield f"{indent}- {first.lstrip()}"
            yield from rest
    else:
        yield indent + _scalar(value)


def _entry(start: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield start
        yield from _lines(value, indent + "  ")
    else:
        yield f"{start} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # JSON does not escape DEL and similar characters, but YAML requires it, also for line
    # separators.
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]",
        lambda odd: f"\\u{ord(odd[0]):04x}",
        json.dumps(value, ensure_ascii=False, default=str),
    )
