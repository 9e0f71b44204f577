"""Real brokers for the addresses on a page. Each page has virtual hosts and servers of its own."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from tests.support.brokers import SCRIPT, broker_ctl, broker_url
from tests.support.kafka import OwnKafka
from tests.support.redis import OwnServer
from tests.support.sqs import OwnElasticMQ


class Brokers:
    """Virtual hosts and users on the RabbitMQ of ``script/brokers``, a Redis, an
    ElasticMQ and a Kafka.

    They are created when they are needed. Without a broker, the test is skipped, or fails in CI.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._redis: OwnServer | None = None
        self._sqs: OwnElasticMQ | None = None
        self._kafka: OwnKafka | None = None

    def url(self, shown: str) -> str:
        """The real address for one on a page, with the same options."""
        parts = urlsplit(shown)
        if not parts.scheme:  # not an address
            return shown
        if parts.scheme == "sqs":
            return self._elasticmq().url
        if parts.scheme == "kafka":
            return self._own_kafka().url
        query = f"?{parts.query}" if parts.query else ""
        if parts.scheme == "amqp":
            real = urlsplit(broker_url("rabbitmq"))
            who, _, where = real.netloc.rpartition("@")
            if parts.username in self._users:
                who = f"{self._users[parts.username]}:{parts.password}"
            return f"amqp://{who}@{where}/{self._host(parts.path.strip('/'))}{query}"
        assert parts.scheme in ("redis", "bullmq"), f"there is no broker for {shown}"
        who, at, _ = parts.netloc.rpartition("@")
        return self._server().url.replace("redis://", f"{parts.scheme}://{who}{at}") + query

    def command(self, words: list[str]) -> list[str]:
        """The command of a broker's own tool, with real names and ports."""
        if words[0] == "redis-cli":
            return ["redis-cli", "-p", str(self._server().port), *words[1:]]
        if words[0] == "rabbitmqctl":
            broker_url("rabbitmq")  # skips the test if there is none
            names = {"add_vhost": self._hosts, "add_user": self._users}.get(words[1])
            if names is not None:
                names[words[2]] = f"docs-{words[2]}-{uuid4().hex[:10]}"
            real = {**self._hosts, **self._users}
            return [str(SCRIPT), "ctl", "rabbitmq", *(real.get(word, word) for word in words[1:])]
        return words

    def _host(self, name: str) -> str:
        if name not in self._hosts:
            made = f"docs-{name}-{uuid4().hex[:10]}"
            broker_ctl("rabbitmq", "add_vhost", made)
            self._hosts[name] = made
            broker_ctl("rabbitmq", "set_permissions", "-p", made, "guest", ".*", ".*", ".*")
        return self._hosts[name]

    def _server(self) -> OwnServer:
        if self._redis is None:
            folder = self._folder / "redis"
            folder.mkdir()
            self._redis = OwnServer(folder)
            self._redis.start()
        return self._redis

    def _elasticmq(self) -> OwnElasticMQ:
        if self._sqs is None:
            self._sqs = OwnElasticMQ(self._folder / "sqs")
            self._sqs.start()
        return self._sqs

    def _own_kafka(self) -> OwnKafka:
        if self._kafka is None:
            self._kafka = OwnKafka(self._folder / "kafka")
            self._kafka.start()
        return self._kafka

    def close(self) -> None:
        """Stop and delete everything."""
        for host in self._hosts.values():
            broker_ctl("rabbitmq", "delete_vhost", host)
        for user in self._users.values():
            broker_ctl("rabbitmq", "delete_user", user)
        if self._redis is not None:
            self._redis.stop()
        if self._sqs is not None:
            self._sqs.kill()
        if self._kafka is not None:
            self._kafka.kill()
