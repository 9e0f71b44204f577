"""Storage of tables and shipped journals: a local folder, or a prefix in an object store."""

from matador.storage.base import Storage, StoredFile
from matador.storage.local import FolderStorage
from matador.storage.objects import ObjectStorage
from matador.storage.opening import open_storage
from matador.storage.options import StorageOptions

__all__ = [
    "FolderStorage",
    "ObjectStorage",
    "Storage",
    "StorageOptions",
    "StoredFile",
    "open_storage",
]
