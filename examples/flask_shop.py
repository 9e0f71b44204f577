"""A Flask service that sends events: flask --app flask_shop run"""

# --8<-- [start:flask]
from flask import Flask, request
from shop import OrderPlaced, app

web = Flask(__name__)
producer = app.producer().sync()  # connects on first use; any thread may use it


@web.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    given = request.get_json()
    result = producer.send(OrderPlaced(given["order_id"], given["amount"]))
    return {"messages": result.sent}, 202


@web.get("/health")
def health() -> tuple[dict[str, str], int]:
    producer.start()  # does nothing if it is connected
    found = producer.health()
    return {"status": found.status}, 200 if found.status == "healthy" else 503


# --8<-- [end:flask]
