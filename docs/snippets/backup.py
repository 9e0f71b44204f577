"""Back up a queue while it is in use."""

# --8<-- [start:backup]
import sqlite3
from contextlib import closing
from pathlib import Path


def back_up(database: Path, copy: Path) -> None:
    """Copy a database page by page while workers continue. Never copy the file itself, because
    part of the data is in the write-ahead log."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target, pages=1000)


# --8<-- [end:backup]
