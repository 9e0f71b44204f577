"""Makes a lake of millions of rows in little time: the rows of a small one, under new ids."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from matador.spark.runtime.arrow import Table, pa
from matador.spark.tables.append import Appender
from matador.spark.tables.keys import keys_of_rows
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.parquet_writer import FileWriter, Part

_FILE_ROWS = 200_000


def fill(spark: SparkSession, folder: Path, rows: int) -> None:
    """Have a lake of so many rows: half events, half deliveries. It has some of each already."""
    layout = Layout(folder)
    dice = np.random.default_rng(7)
    for name in ("events", "deliveries"):
        appender = Appender(spark, layout, name)
        table = layout.table(name).open()
        present = table.read(TABLES[name].names).cast(TABLES[name])
        day = table.files()[0].date
        left = rows // 2 - present.num_rows
        while left > 0:
            more = _under_new_ids(present, min(left, _FILE_ROWS), dice)
            left -= more.num_rows
            writer = FileWriter(table.storage, TABLES[name], day)
            writer.write(more)
            keys = keys_of_rows(name, more)
            added = appender.append([Part(name, writer.close(), keys.tobytes())])
            assert added.rows == more.num_rows, added


def _under_new_ids(present: Table, count: int, dice: np.random.Generator) -> Table:
    copies = pa.concat_tables([present] * -(-count // present.num_rows)).slice(0, count)
    digits = dice.bytes(16 * count)
    ids = [str(uuid.UUID(bytes=digits[at : at + 16])) for at in range(0, 16 * count, 16)]
    return copies.set_column(copies.schema.get_field_index("id"), copies.schema.field("id"), [ids])
