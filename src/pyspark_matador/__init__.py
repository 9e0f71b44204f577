"""Found by Spark: makes ``format("matador")`` known. Nothing else is imported before it is used."""

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
        from matador.spark.source.columns import full_schema
        from matador.spark.source.options import event_of, read_options, struct_of_event

        return full_schema(struct_of_event(event_of(read_options(self.options))))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from matador.spark.source.batch import JournalBatchReader, QueueBatchReader
        from matador.spark.source.columns import check_chosen
        from matador.spark.source.options import read_options

        options = read_options(self.options)
        check_chosen(schema, self.schema())
        return (JournalBatchReader if options.journal else QueueBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream read."""
        from matador.spark.source.columns import check_chosen
        from matador.spark.source.options import read_options
        from matador.spark.source.streams import JournalStreamReader, QueueStreamReader

        options = read_options(self.options)
        check_chosen(schema, self.schema())
        return (JournalStreamReader if options.journal else QueueStreamReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from matador.spark.source.options import write_options
        from matador.spark.source.writers import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A stream write."""
        from matador.spark.source.options import write_options
        from matador.spark.source.writers import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite)
