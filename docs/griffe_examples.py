"""Has mkdocstrings show the ``Example:`` sections of docstrings as code.

It knows doctest only in sections called ``Examples:``; under the singular it sees quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Renames the sections before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
