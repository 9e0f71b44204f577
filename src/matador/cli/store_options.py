"""The options of commands that work with a lake or a store, and opening a lake by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from matador.cli.commands import a_location, option
from matador.cli.output import UsageError
from matador.storage.paths import remote_url

if TYPE_CHECKING:
    from matador.model.schema import Schema
    from matador.spark import Lake

StorageOption = Annotated[
    list[str] | None,
    option(
        "NAME=VALUE",
        "An option of the object store, such as aws_region=eu-central-1; repeatable. "
        "Secrets are safer in environment variables.",
        "--storage-option",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Where a lake is, and how its store is reached."""

    lake: Annotated[
        str,
        option(
            "FOLDER",
            "The lake's folder, or its place in an object store: s3://bucket/lake.",
            "--lake",
            parser=a_location,
        ),
    ]
    storage_option: StorageOption = None

    def __str__(self) -> str:
        return self.lake

    def __repr__(self) -> str:
        return f"LakeOptions({self.lake!r})"

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of the store by name."""
        return storage_options(self.storage_option)


def storage_options(given: list[str] | None) -> dict[str, str]:
    """Options of a store by name.

    Raises:
        UsageError: one is not NAME=VALUE. It does not quote the value.
    """
    found: dict[str, str] = {}
    for number, one in enumerate(given or (), 1):
        name, is_given, value = one.partition("=")
        if not (is_given and name):
            raise UsageError(f"--storage-option number {number} is invalid: use NAME=VALUE")
        found[name] = value
    return found


def open_lake(where: LakeOptions, schema: Schema | None = None, *, create: bool = False) -> Lake:
    """The lake in a folder or a store. Spark is not started yet.

    Raises:
        UsageError: there is no such lake.
    """
    if remote_url(where.lake, "the lake") is not None:
        from matador.spark import Lake  # slow to import, and perhaps not installed

        made = Lake(where.lake, schema=schema, storage_options=where.storage_options)
        if not create and not made.exists():
            raise _no_lake(where, "has no tables")
        return made
    folder = Path(where.lake)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the lake {folder} is a file; it must be a folder")
    if where.storage_options:
        raise UsageError(f"--storage-option is for object stores; the lake {folder} is a folder")
    if not create and not (folder / "events").is_dir():
        problem = "has no tables" if folder.is_dir() else "does not exist"
        raise _no_lake(where, problem)
    from matador.spark import Lake  # slow to import, and perhaps not installed

    return Lake(folder, schema=schema, storage_options=where.storage_options)


def _no_lake(where: LakeOptions, problem: str) -> UsageError:
    return UsageError(
        f"the lake {where} {problem}: create one with "
        f"`matador lake ingest APP --journal journal/ --lake {where}`"
    )
