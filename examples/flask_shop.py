"""A Flask service that sends events: flask --app flask_shop run"""

# --8<-- [start:flask]
import atexit

from flask import Flask, request
from shop import OrderPlaced, app

web = Flask(__name__)
producer = app.producer().sync()  # for code without an event loop; any thread may use it


@web.before_request
def connect() -> None:
    producer.start()  # only the first call connects


@web.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    given = request.get_json()
    result = producer.send(OrderPlaced(given["order_id"], given["amount"]))
    return {"messages": result.sent}, 202


@web.get("/health")
def health() -> tuple[dict[str, str], int]:
    found = producer.app.health()
    return {"status": found.status}, 200 if found.status == "healthy" else 503


atexit.register(producer.shutdown)
# --8<-- [end:flask]
