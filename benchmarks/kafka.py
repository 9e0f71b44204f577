"""Kafka: Matador against the bare client and FastStream with either client.

    script/benchmark kafka [--rounds 3] [--messages 15000] [--only CONTEST] [--without PEER]

On the Kafka of ``script/brokers``: one node, topics of 8 partitions. One producer process, one
worker process, JSON payloads of about 200 bytes, an idempotent producer with ``acks=all``, each
send confirmed by its own delivery report, commits after a handler that counts.

- **send, concurrent**: 64 callers that each await their own confirmation, those of the bare client
  too. For comparison, and without a bar, a bare loop that has no callers: it sends groups of 64 and
  flushes them, the next one when all of the one before are confirmed. All send the same number of
  messages. The first 4,000 are not measured: clients on librdkafka wait half a second for the
  number of an idempotent producer, aiokafka has it when it is connected, and the first message in
  each of the new partitions takes about 10 ms.
- **send, one by one**: the next one is sent when the one before is confirmed; the median send.
- **consume**: a full topic. Ours handles 64 at once. The bare client commits after each 64.
  FastStream commits after each message: with confluent-kafka it handles one at a time, with
  aiokafka one at a time in each partition.
- **latency**: from before the send in one process to the handler in another, 200 messages a second.

All confirm and commit alike: each send awaits its own report, and nothing is committed before its
handler has returned. Ours promises more: it also stores how often each message was delivered,
before its handler begins or a few milliseconds later, so that one that kills its worker is known as
such. That is in the same commits. The bare loop and FastStream do not count.

CPU time is that of the contestant's process. It says more than rates on a machine that is busy with
other work, where who needs more of it also waits longer for it.

The table is Markdown; the exit code is 1 if a bar is not met.
"""

from __future__ import annotations

import sys

from benchmarks.brokers import Contestant, compete, parse, running

CONTESTANTS = (
    Contestant("matador", "ours"),
    Contestant(
        "bare confluent-kafka",
        "raw",
        "confluent_raw.py",
        contests=("send-one", "consume", "latency"),
    ),
    Contestant(
        "bare confluent-kafka, 64 callers", "raw", "confluent_callers.py", contests=("send-many",)
    ),
    Contestant(
        "bare confluent-kafka, groups of 64", "bulk", "confluent_raw.py", contests=("send-many",)
    ),
    Contestant(
        "FastStream (confluent)",
        "peer",
        "faststream_confluent.py",
        share={"consume": 0.1},
    ),
    Contestant(
        "FastStream (aiokafka)",
        "peer",
        "faststream_aiokafka.py",
        share={"consume": 0.05},
    ),
)


def main() -> int:
    chosen = parse(__doc__, [one.name for one in CONTESTANTS if one.role != "ours"], 15_000)
    return compete(CONTESTANTS, chosen.url or running("kafka"), chosen)


if __name__ == "__main__":
    sys.exit(main())
