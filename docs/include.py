"""Puts the code of the examples into the pages, so that they can be read without building the site.

A block names its source by a comment, and has its code below::

    <!-- include "examples/shop.py:app" -->
    ```python
    app = Matador(…)
    ```

``python docs/include.py`` writes the code of today into all pages, and does the same with blocks in
the form of the site generator, ``--8<-- "examples/shop.py:app"``. A test fails when a page differs.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]

_BLOCK = re.compile(
    r'(?:^<!-- include "(?P<source>[^"\n]+)" -->\n)?'
    r"^```(?P<info>[^\n]+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INCLUDE = re.compile(r'--8<-- "([^"\n]+)"\n')
_MARK = re.compile(r"--8<-- \[(?:start|end):[\w-]+\]")


def code(source: str) -> str:
    """The code of ``examples/shop.py``, or of a part, ``examples/shop.py:app``, without marks.

    Raises:
        ValueError: the file has no such part.
    """
    path, _, part = source.partition(":")
    lines = (ROOT / path).read_text().splitlines()
    if part:
        start = [n for n, line in enumerate(lines) if f"--8<-- [start:{part}]" in line]
        end = [n for n, line in enumerate(lines) if f"--8<-- [end:{part}]" in line]
        if len(start) != 1 or len(end) != 1:
            raise ValueError(f"{path} has no part {part!r}, or has it twice")
        lines = lines[start[0] + 1 : end[0]]
    kept = [line for line in lines if not _MARK.search(line)]
    text = re.sub(r"\n{3,}", "\n\n\n", dedent("\n".join(kept)))
    return text.strip("\n") + "\n"


def included(page: str) -> str:
    """The page with the code of today."""

    def block(found: re.Match[str]) -> str:
        source, include = found["source"], _INCLUDE.fullmatch(found["text"])
        if include is not None:
            source = include[1]
        if source is None:
            return found[0]
        return f'<!-- include "{source}" -->\n```{found["info"]}\n{code(source)}```'

    return _BLOCK.sub(block, page)


def pages() -> list[Path]:
    """The pages that may include code."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages():
        before = page.read_text()
        after = included(before)
        if after != before:
            page.write_text(after)
