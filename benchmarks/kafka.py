"""Kafka: Matador against the bare client and FastStream with either client.

    script/benchmark kafka [--rounds 3] [--messages 15000] [--only CONTEST] [--without PEER]

On the Kafka of ``script/brokers``: one node, topics of 8 partitions. One producer process, one
worker process, JSON payloads of about 200 bytes, an idempotent producer with ``acks=all``, each
send confirmed by its own delivery report, commits after a handler that counts.

- **send, concurrent**: 64 callers that each await their own confirmation. The bare client sends
  groups of 64, the next one when all of the one before are confirmed.
- **send, one by one**: the next one is sent when the one before is confirmed; the median send.
- **consume**: a full topic. Ours handles 64 at once. The bare client commits after each 64.
  FastStream commits after each message: with confluent-kafka it handles one at a time, with
  aiokafka one at a time in each partition.
- **latency**: from before the send in one process to the handler in another, 200 messages a second.

Ours commits twice for a batch: before the handlers, how often each message was delivered, so that
one that kills its worker is known as such; and after them, what is done. The bare loop and
FastStream commit after handling only.

The table is Markdown; the exit code is 1 if a bar is not met.
"""

from __future__ import annotations

import sys

from benchmarks.brokers import Contestant, compete, parse, running

CONTESTANTS = (
    Contestant("matador", "ours"),
    Contestant("bare confluent-kafka", "raw", "confluent_raw.py"),
    Contestant(
        "FastStream (confluent)",
        "peer",
        "faststream_confluent.py",
        share={"send-many": 0.3, "consume": 0.1},
    ),
    Contestant(
        "FastStream (aiokafka)",
        "peer",
        "faststream_aiokafka.py",
        share={"send-many": 0.4, "consume": 0.05},
    ),
)


def main() -> int:
    chosen = parse(__doc__, [one.name for one in CONTESTANTS if one.role != "ours"], 15_000)
    return compete(CONTESTANTS, chosen.url or running("kafka"), chosen)


if __name__ == "__main__":
    sys.exit(main())
