"""Spark finds this module, which provides ``format("matador")``; the rest is imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from matador.spark.source.options import ReadOptions

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Queues, dead letters and journals as tables and streams; rows as events to publish.

    Example:
        >>> spark.read.format("matador").option("url", "sqlite:///shop.db").option(
        ...     "queue", "shop.events.undeliverable").load()
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "matador"

    def schema(self) -> StructType:
        """All columns, with the typed ``data`` if an event is named."""
        from matador.spark.source.options import event_of, read_options
        from matador.spark.source.rows import full_schema

        return full_schema(event_of(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from matador.spark.source.log_readers import LogBatchReader, is_log
        from matador.spark.source.readers import JournalBatchReader, QueueBatchReader

        options = self._checked(schema)
        if options.journal:
            return JournalBatchReader(options, schema)
        return (LogBatchReader if is_log(options) else QueueBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream read."""
        from matador.spark.source.log_readers import LogStreamReader, is_log
        from matador.spark.source.options import check_limits
        from matador.spark.source.readers import JournalStreamReader, QueueStreamReader

        options = self._checked(schema)
        check_limits(self.options)
        if options.journal:
            return JournalStreamReader(options, schema)
        return (LogStreamReader if is_log(options) else QueueStreamReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from matador.spark.source.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A stream write."""
        from matador.spark.source.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite)

    def _checked(self, schema: StructType) -> ReadOptions:
        from matador.spark.source.options import read_options
        from matador.spark.source.rows import check_chosen

        options = read_options(self.options)
        check_chosen(schema, self.schema())
        return options
