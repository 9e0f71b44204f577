"""The scripts that run inside the server, each atomic: the files of the folder ``lua``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name under which the server keeps it once it has seen it."""

    source: str = field(repr=False)
    sha: str


@cache
def script(name: str, *, common: str | None = "common") -> Script:
    """The script in ``lua/{name}.lua``, with what it shares with others in front."""
    folder = files("matador.transports.redis") / "lua"
    parts = [(folder / f"{part}.lua").read_text("utf-8") for part in (common, name) if part]
    source = "\n".join(parts)
    # Not for secrecy: it is how the server names scripts.
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())
