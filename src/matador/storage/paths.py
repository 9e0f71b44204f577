"""Takes apart the paths and URLs that users pass, without ever quoting a secret in them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from matador.errors import ConfigurationError

# A single slash is enough: pathlib turns "s3a://bucket" into "s3a:/bucket".
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", re.DOTALL)
_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
}
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?")  # a bucket, or host and port
_ACCOUNT = re.compile(r"[A-Za-z0-9$][A-Za-z0-9-]*(@[A-Za-z0-9.-]+)?")  # container@account


class RemoteUrl(NamedTuple):
    """The address of a folder in a store; ``scheme`` is one of those that delta-rs knows."""

    scheme: str
    place: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}" + (f"/{self.path}" if self.path else "")


def remote_url(given: str | os.PathLike[str], what: str) -> RemoteUrl | None:
    """The address in an object store or HDFS; None if it is a local path.

    Raises:
        ConfigurationError: a URL of a store that has a user, a password or a query: credentials
            are options. The error does not quote it.

    Example:
        >>> str(remote_url("s3a://shop/lake/", "lake"))
        's3://shop/lake'
    """
    found = _URL.match(os.fspath(given))
    if found is None or found[1].lower() not in _SCHEMES:
        return None
    scheme = _SCHEMES[found[1].lower()]
    place, _, path = found[2].removeprefix("/").partition("/")
    pattern = _ACCOUNT if scheme in ("az", "abfs", "abfss") else _PLACE
    if not pattern.fullmatch(place):
        raise ConfigurationError(
            f"{what}: {scheme}:// is followed by no valid name; use {scheme}://"
            f"{'container@account.dfs.core.windows.net' if scheme == 'abfss' else 'bucket'}/folder "
            "without user, password and query, and give credentials as storage options"
        )
    parts = [one for one in path.split("/") if one]
    if any(one in (".", "..") or any(sign in one for sign in "?#*\\\0") for one in parts):
        raise ConfigurationError(
            f"{what}: a folder in {scheme}:// must not contain '..', '?', '#' or '*'; credentials "
            "are storage options"
        )
    return RemoteUrl(scheme, place, "/".join(parts))


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
