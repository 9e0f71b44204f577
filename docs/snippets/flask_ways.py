"""A Flask service that adds jobs, calls a function and publishes: flask --app flask_ways run"""

import os

# --8<-- [start:flask]
from flask import Flask, request

from matador.errors import RpcTimeoutError
from matador.jobs import Queue
from matador.pubsub import Publisher
from matador.rpc import RpcClient

URL = os.environ.get("BROKER", "sqlite:///flask.db")
emails = Queue("emails", provider=URL)
prices = RpcClient(URL, queue="prices", timeout=5)
events = Publisher(URL, exchange="shop")
web = Flask(__name__)


@emails.job(attempts=5)
def send_welcome(to: str) -> str:
    return f"sent to {to}"


@web.post("/users")
def sign_up() -> tuple[dict[str, str], int]:
    email: str = request.get_json()["email"]
    handle = send_welcome.sync().add(to=email)  # all threads share one connection
    events.sync().publish("users.created", {"email": email})
    return {"job": handle.id}, 202


@web.get("/jobs/<job_id>")
def look(job_id: str) -> tuple[dict[str, str], int]:
    job = emails.sync().get(job_id)
    return ({"status": job.status}, 200) if job else ({"status": "gone"}, 404)


@web.get("/prices/<product>")
def price(product: str) -> tuple[dict[str, int], int]:
    try:
        return {"price": prices.sync().call("PRICE", product, result_type=int)}, 200
    except RpcTimeoutError:
        return {}, 504


# --8<-- [end:flask]
