"""A lake on S3: ship the journal, ingest it there, and read the tables with other tools."""
# pyright: basic

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.journaled_shop import OrderPlaced, book_order, email_receipt

from matador import Matador, Schema
from matador.spark import Lake

PLACE = os.environ.get("PLACE", "s3://shop")
schema = Schema({OrderPlaced: [email_receipt, book_order]})

# --8<-- [start:ship]
from matador.observe import Journal

journal = Journal("journal/", ship_to=f"{PLACE}/journal", delete_shipped=True)
app = Matador("sqlite:///orders.db", schema=schema, hooks=[journal])
# --8<-- [end:ship]


async def main() -> None:
    async with app:
        await app.send_many(OrderPlaced(str(number), amount=number) for number in range(1, 31))


asyncio.run(main())

# --8<-- [start:lake]
lake = Lake(f"{PLACE}/lake", schema=schema)  # credentials: from the environment
result = lake.ingest(f"{PLACE}/journal")
print(result.events, "events")
# --8<-- [end:lake]

# --8<-- [start:options]
options = {
    "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
    "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    "aws_region": os.environ["AWS_REGION"],
    "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"],
}
lake = Lake(f"{PLACE}/lake", schema=schema, storage_options=options)
lake.events(OrderPlaced).where("data.amount > 28").select("data.amount").distinct().show()
# --8<-- [end:options]

# --8<-- [start:others]
import duckdb
import polars
from deltalake import DeltaTable

there = {**options, "aws_allow_http": "true"}  # only for an endpoint without TLS
events = polars.scan_delta(f"{PLACE}/lake/events", storage_options=there)
print(events.filter(subscriber="book-order").select(polars.len()).collect().item(), "by Polars")

volume = DeltaTable(f"{PLACE}/lake/volume", storage_options=there).to_pyarrow_dataset()
print(duckdb.execute("SELECT sum(sent) FROM volume").fetchone(), "by DuckDB")
# --8<-- [end:others]
