# pyright: basic, reportMissingImports=false
# --8<-- [start:program]
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker(url="redis://localhost")
broker.add_middleware(Results(backend=RedisBackend(url="redis://localhost")))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="emails", max_retries=4, min_backoff=1000, store_results=True)
def welcome(to, lang="en"):
    return f"sent to {to} in {lang}"


@dramatiq.actor(queue_name="emails")
def newsletter(region):  # something else has to send it at 7 o'clock
    print(f"newsletter for {region}")


if __name__ == "__main__":
    message = welcome.send_with_options(args=("ada@example.com",), delay=1000)
    print(message.get_result(block=True, timeout=30_000))
# --8<-- [end:program]
