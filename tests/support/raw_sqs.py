"""Messages as a foreign program sends them to SQS: odd in every part."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.sqs import sqs_client

from matador.transports.sqs.names import sqs_name

_BODIES = (
    *(" ", "x", "null", "true", "7", '"text"', "{", "[]", "{}", '{"a":1,"a":2}', '"\\ud800"'),
    *("\t\n\r", "é漢😀", "\ufffd\u2028", "<xml/>&amp;", "=" * 8, "LS0t", "x" * 200_000),
    *("[" * 3000, '{"a":' * 3000, '{"id":7,"data":null,"docket":[]}'),
    '{"id":"1","data":{},"docket":{"eventKey":"x","attempts":"many"}}',
)
_TEXTS = (*_BODIES[:-4], "-1", "1e400", "nan", "9" * 30, "0x10")
_NUMBERS = ("0", "-1", "1.5", "1e3", "123456789012345678901234567890", "-0.00001")
_OURS = (
    *("", "{", "[]", "7", "null", '"x"', '{"id":7}', '{"headers":[]}', '{"headers":{"a":[]}}'),
    *('{"encoding":"base64"}', '{"encoding":"rot13"}', '{"priority":1e9}', '{"priority":"x"}'),
    *('{"orderingKey":{}}', '{"delay":"soon"}', '{"delay":-1}', '{"delay":null}', "[" * 3000),
    '{"encoding":"empty"}',
    '{"id":"m","headers":{"x-matador-properties":"{"}}',
    '{"id":"m","headers":{"x-matador-attempts":"many","é \\n":"\\u0000"}}',
)
_NAMES = ("matador", "job.id", "job.maxAttempts", "plain", "x-matador-properties", "a.b-c_d")
_TYPES = ("String", "String.json", "Number", "Number.int", "Binary", "Binary.png")


class RawSqs:
    """Sends past the transport. See ``matador.testing.compliance.raw.RawEntries``."""

    def __init__(self, url: str, *, fifo: bool = False) -> None:
        self._url = url
        self._fifo = fifo
        self._context: Any = None
        self._client: Any = None
        self._urls: dict[str, str] = {}

    async def write(self, queue: str, random: Random) -> str:
        """Send one message that is odd; says how."""
        if self._client is None:
            self._context = sqs_client(self._url)
            self._client = await self._context.__aenter__()
        if queue not in self._urls:
            name = sqs_name(queue, fifo=self._fifo)
            self._urls[queue] = (await self._client.get_queue_url(QueueName=name))["QueueUrl"]
        message = _message(random)
        if self._fifo:
            message["MessageGroupId"] = random.choice(["g", "!", "x" * 128, str(random.random())])
            message["MessageDeduplicationId"] = f"{random.getrandbits(64):016x}"
        await self._client.send_message(QueueUrl=self._urls[queue], **message)
        return str(message)[:300]

    async def close(self) -> None:
        """Disconnect."""
        if self._context is not None:
            await self._context.__aexit__(None, None, None)


def _message(random: Random) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for _ in range(random.randint(0, 10)):
        name = random.choice([*_NAMES, f"n{random.randint(0, 20)}", "x" * 200])
        kind = random.choice(_TYPES)
        if name == "matador" and random.random() < 0.8:
            kind = "String"
        if kind.startswith("Binary"):
            attributes[name] = {"DataType": kind, "BinaryValue": random.randbytes(5)}
        else:
            texts = _NUMBERS if kind.startswith("Number") else _TEXTS
            text = random.choice(_OURS if name == "matador" and kind == "String" else texts)
            attributes[name] = {"DataType": kind, "StringValue": text[:5000] or " "}
    return {"MessageBody": random.choice(_BODIES), "MessageAttributes": attributes}
