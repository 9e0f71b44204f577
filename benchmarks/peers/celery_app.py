"""Celery on either broker: one worker with 8 threads, acknowledged after the handler.

On RabbitMQ with confirms and a quorum queue.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from typing import Any

import harness
from celery import Celery
from celery.signals import worker_ready
from kombu import Queue

URL, QUEUE = sys.argv[2], "bench.celery"
ON_RABBITMQ = URL.startswith("amqp")
THREADS = 8
logging.disable(logging.CRITICAL)


class OnCelery:
    def __init__(self) -> None:
        self.handle: Any = None
        self.worker: Any = None
        self.app = Celery("bench", broker=URL)
        arguments = {"x-queue-type": "quorum"} if ON_RABBITMQ else None
        self.app.conf.update(
            task_default_queue=QUEUE,
            task_queues=[Queue(QUEUE, durable=True, queue_arguments=arguments)],
            task_acks_late=True,
            task_ignore_result=True,
            task_serializer="json",
            worker_prefetch_multiplier=8,
            worker_enable_remote_control=False,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,
            worker_send_task_events=False,
            worker_detect_quorum_queues=ON_RABBITMQ,
            broker_transport_options={"confirm_publish": True} if ON_RABBITMQ else {},
            broker_pool_limit=THREADS,
        )

        @self.app.task(name="count")
        def count(payload: dict) -> None:
            self.handle(payload)

        self.task = count

    def fresh(self, url: str) -> None:
        if ON_RABBITMQ:
            import rabbit

            rabbit.remove(URL, QUEUE, exchanges=(QUEUE,))
        else:
            import redis

            redis.Redis.from_url(URL).flushdb()

    def connect(self) -> None:
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues[QUEUE].bind(connection.default_channel).declare()

    def send(self, payload: harness.Payload) -> None:
        self.task.apply_async((payload,))

    def fill(self, payloads: list[harness.Payload]) -> None:
        harness.by_threads(self.send, payloads)

    def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        ready = threading.Event()
        worker_ready.connect(lambda **_: ready.set(), weak=False)
        self.worker = self.app.Worker(
            pool="threads",
            concurrency=THREADS,
            loglevel="CRITICAL",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        )
        threading.Thread(target=self.worker.start, daemon=True).start()
        if not ready.wait(30):
            raise SystemExit("the worker did not start")

    def close(self) -> None:
        if self.worker is not None:
            time.sleep(0.3)
            stopping = threading.Thread(target=self.worker.stop, daemon=True)
            stopping.start()
            stopping.join(10)
            if stopping.is_alive():
                raise SystemExit("the worker did not stop")
        self.app.close()

    def left(self) -> int:
        if ON_RABBITMQ:
            import rabbit

            return rabbit.left(URL, QUEUE)
        import redis

        client = redis.Redis.from_url(URL)
        return client.llen(QUEUE) + client.hlen("unacked")


if __name__ == "__main__":
    code = 1
    try:
        harness.run_sync(OnCelery())
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is printed and the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of the worker may still wait for something
