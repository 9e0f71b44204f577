"""A service written without Matador: it declares its own queue and publishes two orders.

It needs RabbitMQ at SHOP_URL. The first order has the current format, the second the old one.
"""

import json
import os

import pika

channel = pika.BlockingConnection(pika.URLParameters(os.environ["SHOP_URL"])).channel()
channel.exchange_declare("shop.exchange", "direct", durable=True)
channel.queue_declare("shop.events", durable=True, arguments={"x-max-length": 100_000})
channel.queue_bind("shop.events", "shop.exchange", "shop.events")
channel.confirm_delivery()

# --8<-- [start:bodies]
headers = {
    "x-matador-event-key": "order.placed",
    "x-matador-subscriber": "book-order",
    "x-matador-attempts": 1,
    "x-matador-created-at": "2026-11-15T19:02:37.435Z",
    "x-matador-importance": "should-investigate",
}
body = {"id": "50dbfa1b", "data": {"order_id": "7", "amount": 12}}
older = {
    "key": "order.placed",
    "targetSubscriber": "book-order",
    "data": {"order_id": "8", "amount": 30},
    "metadata": {},
    "universal": {"event_id": "e8a9b1c4", "user_id": "u1", "correlation_id": "web-3"},
}
# --8<-- [end:bodies]

if __name__ == "__main__":
    for content, given in ((body, headers), (older, {})):
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, headers=given
        )
        channel.basic_publish(
            "shop.exchange", "shop.events", json.dumps(content).encode(), properties, mandatory=True
        )
    print("shop.events made: classic, at most 100000 messages; two orders published")
