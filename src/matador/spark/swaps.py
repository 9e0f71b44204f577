"""Replacing batches of a table by one that holds the same rows, with no row seen twice.

The new folder is complete before a swap begins. Then the old ones are moved away and the new one
takes its place: for a reader the rows are gone for the time of a few renames, and never there
twice. What was decided is written down first, so that a swap that is interrupted is carried on by
whoever opens the lake next.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import msgspec

from matador.errors import StorageLockedError
from matador.spark.files import locked, private_folder, sync_folder, write_json
from matador.spark.layout import Layout


class Swap(msgspec.Struct, frozen=True):
    """Batches of a table, to be replaced by a folder. It gets the highest of their numbers."""

    table: str
    batches: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the new folder while it is staged."""
        return f"{self.table}-{self.batches[-1]}"


class _Pending(msgspec.Struct, frozen=True):
    folder: str
    swaps: tuple[Swap, ...]


def swap(layout: Layout, folder: str, swaps: Sequence[Swap]) -> None:
    """Put the new folders, all below the staging folder ``folder``, in place. Holds the lock."""
    sync_folder(layout.staging / folder)
    sync_folder(layout.staging)
    write_json(layout.pending_swaps, _Pending(folder, tuple(swaps)))
    carry_on(layout)


def carry_on(layout: Layout) -> None:
    """Finish swaps that were begun, if there are any. Holds the lock."""
    try:
        content = layout.pending_swaps.read_bytes()
    except FileNotFoundError:
        return
    pending = msgspec.json.decode(content, type=_Pending)
    folder = layout.staging / pending.folder
    old = folder / "old"
    private_folder(old)
    for one in pending.swaps:
        new = folder / one.name
        if not new.exists():
            continue  # this one was finished before the interruption
        for number in one.batches:
            path = layout.batch(one.table, number)
            if path.exists():
                path.rename(old / f"{one.table}-{number}")
        new.rename(layout.batch(one.table, one.batches[-1]))
        sync_folder(layout.table(one.table))
    layout.pending_swaps.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def carry_on_if_interrupted(layout: Layout) -> None:
    """For readers: finish what a process that is gone has begun; one that lives does so itself."""
    if layout.pending_swaps.exists():
        try:
            with locked(layout.lock):
                carry_on(layout)
        except StorageLockedError:
            return
