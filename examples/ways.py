"""A job, an RPC command, a pub/sub subscriber and a channel: `matador worker ways.py` runs them."""

from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.jobs import Queue
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer

URL = "sqlite:///shop.db"
emails = Queue("emails", provider=URL)
maths = RpcServer(URL, queue="maths")
analytics = Subscriber(URL, exchange="shop", queue="analytics")


@emails.job(attempts=5)
async def welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


@maths.handler("ADD")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@analytics.on("orders.*")
async def count_order(order: dict[str, int]) -> None:
    print(f"analytics saw order {order['id']}")


@channel("warehouse")
class Warehouse:
    @consume("packed")
    async def packed(self, order: dict[str, int]) -> None:
        print(f"order {order['id']} is packed")


settings = Settings(QueueSettings(type="sqlite", url=URL))  # or Settings.load("matador.toml")
warehouse = QueueService(settings, channels=[Warehouse])


def main() -> None:
    """Send one message of each kind to the worker. Async code awaits the same methods."""
    client = RpcClient(URL, queue="maths").sync()
    publisher = Publisher(URL, exchange="shop").sync()
    service = QueueService(settings).sync()  # without channels, it only sends
    print(welcome.sync().add(to="ada@example.com").result(timeout=30))
    print("ADD [1, 2, 3] =", client.call("ADD", [1, 2, 3], timeout=30, result_type=int))
    publisher.publish("orders.created", {"id": 1})
    service.send("warehouse", "packed", {"id": 1})


if __name__ == "__main__":
    main()
