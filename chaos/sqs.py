"""SQS as a profile: an ElasticMQ of the run's own, looked into with a plain client.

Every message is on the disk before it is confirmed, so that nothing may be missing after a kill.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from chaos.checker import Stored
from chaos.processes import ROOT
from chaos.profiles import SEND_TIMEOUT, Unplayable, target_of
from chaos.proxy import Proxy
from chaos.servers import own_server
from matador.model.message import REASON_HEADER

_LOOKS = 3  # in a row that show nothing new
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}


class SqsProfile:
    durable = True
    leases = True
    ordered = False
    atomic = False

    def __init__(self, folder: Path) -> None:
        shared = Path(os.environ.get("MATADOR_BROKERS_FOLDER", ROOT / ".brokers"))
        library = os.environ.get("MATADOR_SQS_LIB", str(shared / "sqs" / "lib"))
        if not Path(library).is_dir():
            raise Unplayable("there is no ElasticMQ: script/brokers up sqs downloads it")
        os.environ.update(_CREDENTIALS)  # for the workers, too
        # It keeps all messages in memory, too.
        self._server = own_server(
            "sqs", (("MATADOR_SQS_LIB", library), ("MATADOR_SQS_MEMORY", "1g"))
        )
        self._proxy: Proxy | None = None
        self._up = True
        # Untyped: the methods of the client are made when it is.
        self._client: Any = botocore.session.get_session().create_client(  # pyright: ignore[reportUnknownMemberType]
            "sqs",
            region_name="eu-west-1",
            endpoint_url=f"http://127.0.0.1:{self._server.port}",
            config=Config(retries={"total_max_attempts": 5}),
        )
        for url in self._client.list_queues().get("QueueUrls", []):
            self._client.delete_queue(QueueUrl=url)

    def url(self, lease: float) -> str:
        port = self._server.port if self._proxy is None else self._proxy.port
        timeout = min(SEND_TIMEOUT, max(2.0, lease))
        return (
            f"sqs://eu-west-1?endpoint=http://127.0.0.1:{port}"
            f"&lease={lease:g}&wait=1&timeout={timeout:g}"
        )

    def stored(self, queue: str) -> Sequence[Stored]:
        """See ``Profile``. Of what is delayed or held SQS tells the number only."""
        url = self._find(queue)
        found: list[dict[str, Any]] = []
        looks = 0
        while url is not None and looks < _LOOKS:
            answer = self._client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=60,
                MessageAttributeNames=["All"],
            )
            messages = answer.get("Messages", [])
            looks = 0 if messages else looks + 1
            found += messages
        for one in found:  # others may have it again
            self._client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
            )
        return [_stored(queue, one) for one in found]

    def depth(self, queue: str) -> int:
        url = self._find(queue)
        if url is None:
            return 0
        answer = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        numbers = answer["Attributes"]
        name = "ApproximateNumberOfMessages"
        return sum(int(numbers[f"{name}{state}"]) for state in ("", "Delayed", "NotVisible"))

    def damage(self) -> str | None:
        return None

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if not self._up:
            self.start()
        self._client.close()

    def stop(self, *, kill: bool = False) -> None:
        self._up = False
        self._server.stop(kill=kill)

    def start(self) -> None:
        self._server.start()
        self._up = True

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy(self._server.port)
        return self._proxy

    def drop_queue(self, queue: str) -> None:
        url = self._find(queue)
        if url is not None:
            self._client.delete_queue(QueueUrl=url)

    def job_queue(self, name: str) -> str:
        return name

    def completed_jobs(self, queue: str) -> None:
        """See ``KeepsJobs``: a job that is done is gone."""
        return

    def _find(self, queue: str) -> str | None:
        try:
            return self._client.get_queue_url(QueueName=queue.replace(".", "__"))["QueueUrl"]
        except ClientError:
            return None


def _stored(queue: str, message: dict[str, Any]) -> Stored:
    attributes: dict[str, dict[str, str]] = message.get("MessageAttributes", {})
    ours: dict[str, Any] = json.loads(attributes.get("matador", {}).get("StringValue", "{}"))
    id_ = ours.get("id") or attributes.get("job.id", {}).get("StringValue", "")
    body = message["Body"].encode()
    if ours.get("encoding") == "base64":
        body = b64decode(body)
    elif ours.get("encoding") == "empty":
        body = b""
    reason = ours.get("headers", {}).get(REASON_HEADER)
    return Stored(target_of(body), id_, queue, body, reason)
