"""Events as tables: create, query, read with other tools, maintain."""
# pyright: basic

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples import journaled_shop
from examples.journaled_shop import OrderPlaced, app

from matador import Schema, event

asyncio.run(journaled_shop.main())

# --8<-- [start:ingest]
from matador.spark import Lake

lake = Lake("lake/", schema=app.schema)
result = lake.ingest("journal/")
print(result.events, "events,", result.deliveries, "deliveries")
# --8<-- [end:ingest]

# --8<-- [start:typed]
large = lake.events(OrderPlaced).where("subscriber = 'email-receipt' AND data.amount > 100")
large.groupBy("data.country").sum("data.amount").orderBy("country").show()
# --8<-- [end:typed]

# --8<-- [start:sql]
slow = lake.sql("""
    SELECT subscriber, count(*) AS attempts, max(duration_ms) < 60000 AS in_time
    FROM deliveries
    WHERE outcome = 'success'
    GROUP BY subscriber
    ORDER BY subscriber
""")
slow.show()
# --8<-- [end:sql]

# --8<-- [start:report]
report = lake.report()
report.html("report.html")
print("adds up:", report.findings.reconciliation.adds_up)
# --8<-- [end:report]

# --8<-- [start:reconcile]
for line in lake.reconcile(app).lines:
    print(line.subscriber, line.sent, "=", line.handled, "+", line.dead_lettered, "+", line.waiting)
# --8<-- [end:reconcile]

# --8<-- [start:polars]
import polars

failed = (
    polars.scan_delta("lake/deliveries")
    .filter(polars.col("outcome") == "dead-letter")
    .group_by("subscriber")
    .len()
)
print(dict(failed.collect().iter_rows()))
# --8<-- [end:polars]

# --8<-- [start:duckdb]
import duckdb
from deltalake import DeltaTable

health = DeltaTable("lake/health").to_pyarrow_dataset()
query = "SELECT subscriber, sum(count) FROM health GROUP BY 1 ORDER BY 2 DESC, 1"
print(duckdb.execute(query).fetchall())
# --8<-- [end:duckdb]

# --8<-- [start:publish]
lake.publish()
orders = polars.scan_delta("lake/typed/order_placed")
amounts = orders.unnest("data").filter(subscriber="book-order").select(polars.col("amount").sum())
print(amounts.collect().item(), "in all")
# --8<-- [end:publish]


# --8<-- [start:changed]
@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class NewOrderPlaced:
    order_id: str
    amount: int
    voucher: str | None = None  # new, with a default; the country was removed


newer = Lake("lake/", schema=Schema({NewOrderPlaced: []}))
print(newer.events(NewOrderPlaced).select("data.*").columns)
# --8<-- [end:changed]


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class StrictOrderPlaced:
    order_id: str
    amount: int
    customer: str  # missing in all old events


# --8<-- [start:quarantine]
strict = Lake("strict-lake/", schema=Schema({StrictOrderPlaced: []}))
print(strict.ingest("journal/").quarantined, "in quarantine")
strict.quarantine().groupBy("kind", "reason").count().show(truncate=False)
# --8<-- [end:quarantine]

# --8<-- [start:upkeep]
lake.compact()
lake.expire(timedelta(days=90))
lake.vacuum()
# --8<-- [end:upkeep]
