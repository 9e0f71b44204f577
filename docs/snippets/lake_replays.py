"""Replay events from a lake, redrive dead letters by cause, and publish rows as events."""
# pyright: basic

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples import journaled_shop
from examples.journaled_shop import OrderPlaced, app

from matador.spark import Lake

asyncio.run(journaled_shop.main())
lake = Lake("lake/", schema=app.schema)
lake.ingest("journal/")

# --8<-- [start:dry-run]
chosen = {"event": OrderPlaced, "where": "data.amount > 100", "since": "2026-11-01"}
for one in lake.replay(app, **chosen, dry_run=True).counts:
    print(one.event_key, one.subscriber, one.count)
# --8<-- [end:dry-run]

# --8<-- [start:replay]
done = lake.replay(app, **chosen, subscriber="email-receipt", rate=500, replay_id="november")
print(done.sent, "sent")
# --8<-- [end:replay]

# --8<-- [start:resume]
again = lake.replay(app, replay_id="november")
print("resumed:", again.resumed, "- sent in total:", again.sent)
# --8<-- [end:resume]

# --8<-- [start:marked]
lake.ingest("journal/")
lake.sql("""
    SELECT replay_id, count(*) AS messages, count(DISTINCT replay_of) AS originals
    FROM events
    WHERE replay_id IS NOT NULL
    GROUP BY replay_id
""").show()
# --8<-- [end:marked]

# --8<-- [start:redrive]
Path("bug-is-fixed").touch()
for group in lake.triage().collect():
    print(group["count"], "×", group["text"])
    print(lake.redrive(app, signature=group["signature"]).moved, "sent back")
# --8<-- [end:redrive]

# --8<-- [start:backfill]
rows = [("a1", 5, "FR"), ("a2", 7, "NL")]
old = lake.spark.createDataFrame(rows, "order_id string, amount int, country string")
print(lake.backfill(app, OrderPlaced, old, replay_id="old-shop").sent, "messages")
# --8<-- [end:backfill]

where = Path(journaled_shop.__file__)
# --8<-- [start:format]
from matador.spark import register

register(lake.spark)
writer = old.write.format("matador").mode("append")
writer.option("app", f"{where}:app").option("event", "order.placed").save()
# --8<-- [end:format]
