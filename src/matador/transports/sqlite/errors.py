"""Translates the errors of ``sqlite3`` into ours, which say what happened and what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import msgspec

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    SendFailedError,
    StorageCorruptError,
    StorageFullError,
    StorageLockedError,
    UnstorableError,
)

UNSTORABLE: tuple[type[Exception], ...] = (
    ValueError,  # UnicodeError too
    OverflowError,
    TypeError,
    RecursionError,
    msgspec.MsgspecError,
    sqlite3.DataError,
)
"""Raised for a message that can never be stored. SQLite undoes only the statement, so that the
transaction can continue."""

_REFUSED_VALUES = (
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
    sqlite3.SQLITE_CONSTRAINT_CHECK,
    sqlite3.SQLITE_CONSTRAINT | 12 << 8,  # SQLITE_CONSTRAINT_DATATYPE, which sqlite3 does not name
)
_LITTLE_ROOM = 1 << 20  # bytes; with less, an I/O error means that the disk is full


def code_of(error: BaseException) -> int:
    """The primary SQLite result code of an error, 0 if it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_whole(error: BaseException) -> bool:
    """Does the error concern the whole database, so that trying items one by one is futile?"""
    return code_of(error) in {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
    }


def translate(error: BaseException, path: Path, *, opening: bool = False) -> MatadorError:
    """The error of this package for ``error``, which becomes its cause."""
    if isinstance(error, MatadorError):
        return error
    made = _translate(error, path, opening)
    made.__cause__ = error
    return made


def _translate(error: BaseException, path: Path, opening: bool) -> MatadorError:
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return StorageFullError(f"no space left for {path}: {error}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageLockedError(f"{path} is locked by another process: {error}")
    if code == sqlite3.SQLITE_NOTADB:
        return StorageCorruptError(f"{path} is not an SQLite database: {error}")
    if code == sqlite3.SQLITE_CORRUPT:
        return StorageCorruptError(f"{path} is damaged: {error}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or opening:
        return ConnectionFailedError(f"cannot open {path} for writing: {_why(path, error)}")
    if isinstance(error, UNSTORABLE) or _is_bad_value(error):
        return UnstorableError(f"cannot be stored in {path}: {type(error).__name__}: {error}")
    return SendFailedError(f"{path}: {type(error).__name__}: {error}")


def _is_bad_value(error: BaseException) -> bool:
    """Is a part of the message missing, of a wrong type, or out of range?"""
    refused = getattr(error, "sqlite_errorcode", 0) in _REFUSED_VALUES
    return refused or str(error).startswith("Error binding parameter")


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        return False


def _why(path: Path, error: BaseException) -> str:
    folder = path.parent
    if not folder.exists():
        return f"the folder {folder} does not exist; create it"
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if path.is_dir():
        return "it is a folder; give the path of a file"
    if path.exists() and not os.access(path, os.W_OK):
        return "no permission to write the file; change its owner or mode"
    if not os.access(folder, os.W_OK):
        return f"no permission to write in the folder {folder}; change its owner or mode"
    return f"{error}"
