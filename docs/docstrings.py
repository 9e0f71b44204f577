"""Adapts our docstrings for mkdocstrings.

mkdocstrings recognises doctests only in sections called ``Examples:``, not ``Example:``. And the
``description`` of an error, which says what to do, is not a docstring.
"""

from __future__ import annotations

import ast
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

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for error in pkg["errors"].classes.values():
            described = error.members.get("description")
            if error.docstring is None or described is None or error.name == "MatadorError":
                continue
            summary, _, rest = error.docstring.value.partition("\n")
            text = ast.literal_eval(str(getattr(described, "value", "''")))
            error.docstring.value = f"{summary}\n\n*{text}*\n{rest}"
