"""Helps mkdocstrings with two habits of our docstrings.

It knows doctest only in sections called ``Examples:``; under the singular it sees quotations. And a
class that takes its docstring from its base class at run time has none in its source.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Changes docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        pkg["events.app.Matador"].docstring = pkg["events.application.Application"].docstring
