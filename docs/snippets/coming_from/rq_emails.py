# pyright: basic, reportMissingImports=false
# --8<-- [start:program]
from datetime import timedelta

from redis import Redis
from rq import Queue, Retry

queue = Queue("emails", connection=Redis())


def welcome(to, lang="en"):
    return f"sent to {to} in {lang}"


def newsletter(region):
    print(f"newsletter for {region}")


if __name__ == "__main__":
    job = queue.enqueue_in(
        timedelta(seconds=1),
        "emails.welcome",
        "ada@example.com",
        retry=Retry(max=4, interval=[1, 2, 4, 8]),
    )
    print(job.latest_result(timeout=30).return_value)
# --8<-- [end:program]
