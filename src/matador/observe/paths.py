"""Checks the paths that users pass: only local folders are supported."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from matador.errors import ConfigurationError

# A single slash is enough: pathlib turns "s3a://bucket" into "s3a:/bucket".
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", re.DOTALL)


def local_path(given: str | os.PathLike[str], what: str) -> Path:
    """A local path; may be given as ``file:///abs/path``.

    ``what`` names the option in the error. The error does not quote the URL, which may contain a
    secret.

    Raises:
        ConfigurationError: a URL that is not a local file.

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
        f"{what}: {where} is not supported, only local paths such as /data/shop or "
        "file:///data/shop; mount other storage as a folder"
    )
