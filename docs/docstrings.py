"""Adapts our docstrings for mkdocstrings.

mkdocstrings recognizes doctests only in sections called ``Examples:``, not ``Example:``.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
_LITERAL = re.compile(r"::$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", text)
