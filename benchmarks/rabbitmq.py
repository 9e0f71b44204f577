"""RabbitMQ: Matador against raw clients and the libraries that teams use instead.

    script/benchmark rabbitmq [--rounds 3] [--messages 8000] [--only CONTEST] [--without PEER]

One producer process, one worker process, JSON payloads of about 200 bytes, durable queues,
persistent messages, each send confirmed, each message acknowledged after a handler that counts. All
use quorum queues, also those whose default is another; one row shows ours on a classic queue.

- **send, concurrent**: 64 callers that each await their own confirmation. Raw pika keeps 256
  unconfirmed messages on their way; libraries without asyncio send by 8 threads.
- **send, one by one**: the next one is sent when the one before is confirmed; the median send.
- **consume**: a full queue, 64 at once (libraries with threads: 8, with the prefetch that they
  choose for it). Raw pika acknowledges 64 at a time.
- **latency**: from before the send in one process to the handler in another, 200 messages a second.

"Raw" are clients, against which ours has to reach a share; "peers" do what ours does. The table is
Markdown; the exit code is 1 if a bar is not met.
"""

from __future__ import annotations

import sys

from benchmarks.brokers import Contestant, compete, parse, running

CONTESTANTS = (
    Contestant("matador", "ours"),
    Contestant(
        "matador, classic queue",
        "variant",
        contests=("send-many", "consume"),
        options=("classic",),
    ),
    Contestant("raw pika", "raw", "pika_raw.py"),
    Contestant("raw aio-pika", "raw", "aio_pika_raw.py", share={"send-many": 0.4, "consume": 0.5}),
    Contestant(
        "FastStream", "peer", "faststream_rabbitmq.py", share={"send-many": 0.3, "consume": 0.25}
    ),
    Contestant(
        "Dramatiq", "peer", "dramatiq_rabbitmq.py", share={"send-many": 0.15, "consume": 0.15}
    ),
    Contestant("Taskiq", "peer", "taskiq_rabbitmq.py", share={"send-many": 0.3, "consume": 0.2}),
    Contestant("Celery", "peer", "celery_app.py", share={"send-many": 0.1, "consume": 0.1}),
)


def main() -> int:
    chosen = parse(__doc__, [one.name for one in CONTESTANTS if one.role != "ours"], 8_000)
    return compete(CONTESTANTS, chosen.url or running("rabbitmq"), chosen)


if __name__ == "__main__":
    sys.exit(main())
