"""Compressed messages: read whatever arrives, and never unpack more than allowed."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador import Hooks
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.channels.compression import ENCODING, compressed, decompressed
from matador.model.message import Delivery
from matador.runtime.facts import Attempt
from matador.testing import make_delivery, wait_for


def arrived(body: bytes, encoding: str | int = "gzip") -> Delivery:
    return make_delivery(body, headers={ENCODING: encoding})


@given(st.binary(max_size=1000))
def test_what_is_compressed_is_read_back(body: bytes) -> None:
    packed = compressed(body)
    assert gzip.decompress(packed) == body, "any program can read it"
    assert decompressed(arrived(packed), 1000) == (body, None)


def test_a_plain_message_stays_as_it_is() -> None:
    assert decompressed(make_delivery(b"{}"), 10) == (b"{}", None)


@pytest.mark.parametrize(
    ("body", "encoding", "problem"),
    [
        (b"{}", "gzip", "cannot be decompressed"),
        (b"", "gzip", "ends too soon"),
        (gzip.compress(b"x" * 50, mtime=0)[:-9], "gzip", "ends too soon"),
        (gzip.compress(b"{}", mtime=0) + b"{}", "gzip", "extra bytes after"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", "extra bytes after"),
        (gzip.compress(b"x" * 101, mtime=0), "gzip", "more than 100 bytes"),
        (gzip.compress(b"\0" * 50_000_000, mtime=0), "gzip", "more than 100 bytes"),
        (b"{}", "br", "unknown content encoding 'br'"),
        (b"{}", 7, "unknown content encoding '7'"),
    ],
    ids=["no gzip", "empty", "cut", "more", "twice", "too large", "bomb", "unknown", "no text"],
)
def test_what_cannot_be_read_is_a_problem(body: bytes, encoding: str | int, problem: str) -> None:
    kept, found = decompressed(arrived(body, encoding), 100)
    assert problem in (found or "")
    assert kept == body, "kept as it arrived"


@given(st.binary(max_size=200))
def test_reading_never_raises(body: bytes) -> None:
    decompressed(arrived(body), 100)


class Seen(Hooks):
    """Notes the data of messages that were handled."""

    def __init__(self) -> None:
        self.data: list[object] = []

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.data += [one.envelope.data for one in batch]


async def test_hooks_see_what_was_compressed() -> None:
    @channel("orders")
    class Orders:
        @consume("created")
        async def created(self, order: dict[str, int]) -> None: ...

    queue, seen = QueueSettings(type="memory", url="memory://", compression=True), Seen()
    async with QueueService(Settings(queue), channels=[Orders], hooks=seen) as service:
        await service.send("orders", "created", {"id": 1})
        await wait_for(lambda: seen.data)
    assert seen.data == [{"id": 1}]


@pytest.mark.parametrize(("size", "problem"), [(999, None), (1000, None), (1001, "more than 1000")])
def test_the_limit_itself_is_allowed_and_a_byte_more_is_not(size: int, problem: str | None) -> None:
    packed = compressed(b"x" * size)
    body, why = decompressed(arrived(packed), 1000)
    assert (body == packed) is (problem is not None)
    assert (why or "").startswith(problem or "")
    assert (why is None) is (problem is None)
