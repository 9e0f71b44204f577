"""Messages in an SQLite file."""

from matador.transports.sqlite.transport import SqliteTransport

__all__ = ["SqliteTransport"]
