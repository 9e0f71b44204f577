"""RabbitMQ as a profile: a server of the run's own, looked into from an Erlang node beside it.

A virtual host a scenario, so that none sees what another left. A frozen process keeps its messages
until its heartbeats are missed: two of them make what a lease is elsewhere.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from chaos.checker import Stored
from chaos.profiles import SEND_TIMEOUT, Unplayable, target_of
from chaos.proxy import Proxy
from chaos.servers import Server, at_end, own_server
from matador.model.topology import DEAD_LETTER_KINDS

_PROBE = Path(__file__).with_name("rabbitmq_probe.escript")
_BIN = Path(os.environ.get("MATADOR_RABBITMQ_BIN", "/usr/lib/rabbitmq/bin"))
_REASON = "x-matador-dead-letter-reason"
_SUBSCRIBER = "x-matador-subscriber"
_DEAD = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)
_HOPS = "matador.delay.hops."
_LOST = "matador.delay.lost"
_EVERYTHING = 1_000_000
_PATIENCE = 60.0
_LOOK = 0.05


class Probe:
    """Asks ``rabbitmq_probe.escript``. Outlives restarts of the server."""

    def __init__(self, server: Server) -> None:
        self._process = subprocess.Popen(
            ["escript", str(_PROBE), f"matador{server.port}@localhost"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HOME": str(server.folder),
                "ERL_EPMD_PORT": str(server.port + 2),
                "ERL_EPMD_ADDRESS": "127.0.0.1",
            },
        )

    def ask(self, *words: object) -> str | None:
        """An answer; None if what was asked about is not there.

        Raises:
            RuntimeError: the server does not answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise RuntimeError(f"{' '.join(map(str, words))}: {answer or 'the probe has ended'}")
        return None if answer == "none" else answer

    def ask_until_it_answers(self, *words: object) -> str | None:
        """The same; a server that has just come back is given time to gather its wits."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.ask(*words)
            except RuntimeError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(_LOOK)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)


@cache
def _server() -> tuple[Server, Probe]:
    server = own_server("rabbitmq")
    probe = Probe(server)
    at_end(probe.close)  # before the server, whose port mapper ends when nobody uses it
    return server, probe


class RabbitMQProfile:
    durable = True
    leases = False
    ordered = False
    atomic = False
    drains = True

    def __init__(self, folder: Path) -> None:
        if not (_BIN / "rabbitmq-server").exists() or shutil.which("escript") is None:
            raise Unplayable("there is no RabbitMQ: script/brokers up rabbitmq installs it")
        self._server, self._probe = _server()
        self._proxy: Proxy | None = None
        self._vhost = f"chaos-{time.time_ns():x}"
        self._blocked = False
        self._up = True
        self._ask("ping")
        self._ask("add-vhost", self._vhost)

    def url(self, lease: float) -> str:
        port = self._server.port if self._proxy is None else self._proxy.port
        return (
            f"amqp://guest:guest@127.0.0.1:{port}/{self._vhost}"
            f"?heartbeat={max(1, round(lease / 2))}&send_timeout={SEND_TIMEOUT:g}"
        )

    def stored(self, queue: str) -> Sequence[Stored]:
        """See ``Profile``. Without what consumers hold: its bytes cannot be had."""
        if queue.endswith(_DEAD):
            return self._dead_letters(queue)
        delayed = [one for hop in self._hops() for one in self._peek(hop)]
        found = [*self._peek(queue), *delayed]
        return [
            Stored(target_of(body, subscriber), id_, queue, body)
            for key, id_, subscriber, body in found
            if key == queue
        ]

    def depth(self, queue: str) -> int:
        """See ``Profile``. What is delayed counts once a work queue is empty, for each of them."""
        count = self._count(queue)
        if queue.endswith(_DEAD):
            return count
        # From the first hop to the last, as they move. Twice: a message that is retried just then
        # may be where a look has been already.
        for _ in range(2):
            if count == 0:
                count = sum(map(self._count, [*self._hops(), _LOST, queue]))
        return count

    def _hops(self) -> list[str]:
        """The queues in which delayed messages wait; those with the most hops to go first."""
        return sorted((self._ask("queues", self._vhost, _HOPS) or "").split(), reverse=True)

    def _count(self, queue: str) -> int:
        return int(self._ask("depth", self._vhost, queue) or 0)

    def damage(self) -> str | None:
        down = int(self._ask("down", self._vhost) or 0)
        return f"{down} queues are down" if down else None

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if not self._up:
            self.start()
        if self._blocked:
            self.unblock()
        self._ask("delete-vhost", self._vhost)

    def stop(self, *, kill: bool = False) -> None:
        """See ``Restarts``. Queues declared just now survive a kill, too: see the probe."""
        self._ask("sync")
        self._up = False
        self._server.stop(kill=kill)

    def start(self) -> None:
        self._server.start()
        self._ask("ping")
        self._up = True

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy(self._server.port)
        return self._proxy

    def block(self) -> None:
        """See ``BlocksPublishers``: an alarm for want of memory."""
        self._blocked = True
        self._ask("watermark", "0.0000001")

    def unblock(self) -> None:
        self._ask("watermark", "0.4")
        self._blocked = False

    def drop_queue(self, queue: str) -> None:
        with self._channel() as channel:
            channel.queue_delete(queue)

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: another takes its place that never has room."""
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        with self._channel() as channel:
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True, arguments=full)

    def mend_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: whoever applies a topology makes it again."""
        self.drop_queue(queue)

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``: their queues are full, by policy."""
        self._ask("refuse", self._vhost, f"\\.({'|'.join(DEAD_LETTER_KINDS)})$")

    def accept_dead_letters(self) -> None:
        self._ask("accept", self._vhost)

    def job_queue(self, name: str) -> str:
        return f"jobs.{name}"

    def completed_jobs(self, queue: str) -> None:
        """See ``KeepsJobs``: a job that is done is gone."""
        return

    def _ask(self, *words: object) -> str | None:
        return self._probe.ask_until_it_answers(*words)

    def _peek(self, queue: str) -> list[tuple[str, str, str, bytes]]:
        """Routing key, id, subscriber and body of what is ready in a quorum queue; it stays."""
        found: list[tuple[str, str, str, bytes]] = []
        for place in range(1, _EVERYTHING):
            answer = self._ask("peek", self._vhost, queue, place)
            if answer is None:
                break
            key, *rest = (answer + "   ").split(" ")[:4]
            id_, subscriber, body = map(base64.b64decode, rest)
            found.append((key, id_.decode(), subscriber.decode(), body))
        return found

    def _dead_letters(self, queue: str) -> list[Stored]:
        """Taken, and given back when the channel closes: classic queues cannot be peeked into."""
        found: list[Stored] = []
        with self._channel() as channel:
            for _ in range(_EVERYTHING):
                try:
                    method, properties, body = channel.basic_get(queue)
                except pika.exceptions.ChannelClosedByBroker:  # there is no such queue
                    break
                if method is None:
                    break
                headers: dict[str, Any] = properties.headers or {}
                reason: Any = headers.get(_REASON)
                found.append(
                    Stored(
                        target_of(body, headers.get(_SUBSCRIBER)),
                        properties.message_id or "",
                        queue,
                        body,
                        None if reason is None else str(reason),
                    )
                )
        return found

    @contextmanager
    def _channel(self) -> Generator[Any]:
        """A channel of pika; untyped, as pika is."""
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self._server.port, self._vhost, heartbeat=0
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            connection.close()
