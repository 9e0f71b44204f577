"""Draws the terminal pictures of the documentation: `python docs/assets/screenshots.py`."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).parent

_FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def main() -> None:
    """Run the demo, and draw its output."""
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    demo: Any = import_module("demo")
    demo.console = Console(record=True, width=112, file=io.StringIO(), highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(demo.main(Path(folder), ".demo"))
    svg = demo.console.export_svg(title="./script/demo", unique_id="demo")
    # The picture loads nothing: it uses whatever monospaced font is installed.
    (HERE / "demo.svg").write_text(_FONT_FACES.sub("", svg))
    print("drew demo.svg")


if __name__ == "__main__":
    main()
