"""Opens the storage of a path or URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from matador.errors import ConfigurationError
from matador.storage.base import Storage
from matador.storage.local import FolderStorage
from matador.storage.objects import ObjectStorage
from matador.storage.options import StorageOptions
from matador.storage.paths import local_path, remote_url


def open_storage(
    where: str | os.PathLike[str], what: str, options: Mapping[str, Any] | None = None
) -> Storage:
    """The storage that a user has named; ``what`` names it in errors. Nothing is contacted yet.

    Raises:
        ConfigurationError: an unknown kind of URL, or an option that its store does not have.

    Example:
        >>> open_storage("s3://shop/lake", "lake", {"aws_region": "eu-central-1"})
        ObjectStorage('s3://shop/lake')
    """
    url = remote_url(where, what)
    if url is not None:
        return ObjectStorage(str(url), StorageOptions(url.scheme, options))
    if options:
        raise ConfigurationError(
            f"{what}: storage options are for object stores such as s3://bucket/lake; "
            "this is a local folder"
        )
    return FolderStorage(str(local_path(where, what).absolute()))
