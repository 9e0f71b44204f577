"""The paths that users give. Folders of a file system only: anything else is refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from matador.errors import ConfigurationError

# One slash is enough: pathlib has made "s3a:/bucket" of "s3a://bucket" before we see it.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", re.DOTALL)


def local_path(given: str | os.PathLike[str], what: str) -> Path:
    """A path of this machine's file systems; ``file:///abs/path`` is one, too.

    ``what`` names the option in the error. The rest of a URL is not repeated: it may hold a key.

    Raises:
        ConfigurationError: a URL of anything but a local file.

    Example:
        >>> local_path("file:///data/lake", "lake")
        PosixPath('/data/lake')
    """
    text = os.fspath(given)
    found = _URL.match(text)
    if found is None:
        return Path(text)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        host, _, path = rest[1:].partition("/") if rest.startswith("/") else ("", "", rest)
        if host in ("", "localhost"):
            return Path("/" + unquote(path))
    where = f"{scheme}://" if scheme != "file" else "a file:// URL of another host"
    raise ConfigurationError(
        f"{what}: {where} is not supported, only paths of a file system, such as /data/shop or "
        "file:///data/shop; mount other storage as a folder first"
    )
