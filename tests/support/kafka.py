"""Kafka for tests: servers of their own, a plain client to look from outside, and tidying up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as administration
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.brokers import SCRIPT
from tests.support.ports import free_ports


class OwnKafka:
    """A server that a test may kill and start again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        folder_of_all = Path(
            os.environ.get("MATADOR_BROKERS_FOLDER", SCRIPT.parents[1] / ".brokers")
        )
        library = Path(os.environ.get("MATADOR_KAFKA_LIB", folder_of_all / "kafka" / "lib"))
        if not library.is_dir():
            reason = "there is no Kafka: script/brokers up kafka downloads it"
            if os.environ.get("CI", "").lower() in ("1", "true"):
                pytest.fail(reason)
            pytest.skip(reason)
        self.port = free_ports(3)  # clients, the controller, and clients with a password
        self._pid = folder / "kafka" / "pid"
        self._environment = {
            **os.environ,
            "MATADOR_BROKERS_FOLDER": str(folder),
            "MATADOR_KAFKA_LIB": str(library),
            "MATADOR_KAFKA_PORT": str(self.port),
            "MATADOR_KAFKA_SETTINGS": "\n".join(settings),
        }

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def sasl_port(self) -> int:
        """Where clients have to say who they are; see ``ask_for_passwords``."""
        return self.port + 2

    def ask_for_passwords(self, user: str, password: str) -> None:
        """Before it is started: have a second port, for this user."""
        plain, sasl = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.sasl_port}"
        clients = f"PLAINTEXT://{plain},SASL://{sasl}"
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = (
            f"listeners={clients},CONTROLLER://127.0.0.1:{self.port + 1}",
            f"advertised.listeners={clients}",
            f"listener.security.protocol.map={protocols}",
            "listener.name.sasl.sasl.enabled.mechanisms=PLAIN",
            f'listener.name.sasl.plain.sasl.jaas.config={login} required user_{user}="{password}";',
        )
        self._environment["MATADOR_KAFKA_SETTINGS"] = "\n".join(settings)

    def start(self) -> None:
        self._run("up")

    def kill(self) -> None:
        self._run("kill")

    def freeze(self) -> None:
        """Have it stand still until it is killed."""
        os.kill(int(self._pid.read_text("ascii")), signal.SIGSTOP)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _run(self, action: str) -> None:
        command = [str(SCRIPT), action, "kafka"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def servers_of(url: str) -> str:
    """The hosts of a transport's URL, as clients of Kafka want them."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0]


def kafka_admin(url: str) -> Any:
    """A plain client for the server of a transport's URL."""
    return AdminClient({"bootstrap.servers": servers_of(url)})


def make_topics(url: str, *names: str, partitions: int = 1, **settings: object) -> None:
    """Make topics as another program would; ``max_message_bytes`` is ``max.message.bytes``."""
    admin = kafka_admin(url)  # it ends with its last reference, and its futures with it
    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    new = [NewTopic(name, partitions, 1, config=config) for name in names]
    for future in admin.create_topics(new).values():
        future.result()


def set_topic(url: str, name: str, setting: str, value: str) -> None:
    """Change a setting of a topic; returns once the broker knows of it."""
    names: Any = administration
    change = names.ConfigEntry(setting, value, incremental_operation=names.AlterConfigOpType.SET)
    topic = names.ConfigResource(names.ResourceType.TOPIC, name, incremental_configs=[change])
    admin = kafka_admin(url)
    for future in admin.incremental_alter_configs([topic]).values():
        future.result()
    asked = names.ConfigResource(names.ResourceType.TOPIC, name)
    while admin.describe_configs([asked])[asked].result()[setting].value != value:
        pass  # what is written now, it would store in the old way


def delete_topics(url: str, *names: str) -> None:
    """Delete topics, which must be there; returns once the broker takes nothing for them."""
    admin = kafka_admin(url)
    for future in admin.delete_topics(list(names)).values():
        future.result()
    while admin.list_topics(timeout=10).topics.keys() & set(names):
        pass  # what it would store now, it would delete


class Sweeper:
    """Deletes topics beside the next test: the broker takes a second for those of one."""

    def __init__(self, url: str) -> None:
        self._admin = kafka_admin(url)
        self._futures: list[Any] = []

    def forget(self, *prefixes: str) -> None:
        """Delete all topics whose names begin like this."""
        self._delete(lambda name: name.startswith(prefixes))

    def forget_with(self, part: str) -> None:
        """Delete all topics that have this in their names."""
        self._delete(lambda name: part in name)

    def _delete(self, wanted: Callable[[str], bool]) -> None:
        topics = self._admin.list_topics(timeout=10).topics
        if found := [name for name in topics if wanted(name)]:
            self._futures += self._admin.delete_topics(found).values()

    def close(self) -> None:
        """Wait until they are gone."""
        for future in self._futures:
            future.exception()


def forget_topics(url: str, *prefixes: str) -> None:
    """Delete all topics whose names begin like this."""
    admin = kafka_admin(url)
    found = [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefixes)]
    if found:
        for future in admin.delete_topics(found).values():
            future.exception()
