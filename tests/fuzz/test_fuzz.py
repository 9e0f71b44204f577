"""A short fuzz run, and checks that a run would show what it is there to show."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from random import Random

import pytest
from tests.fuzz import raw
from tests.fuzz.corpus import CORPUS, Sample
from tests.fuzz.mutations import MUTATIONS, mutate
from tests.fuzz.run import CODECS, main, run
from tests.fuzz.targets import Try, codecs, try_codec
from tests.support.raw_memory import MemoryEntries

from matador.model.message import Complete, Settlement
from matador.model.topology import Topology
from matador.transports.memory import MemoryTransport


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_spoiled_messages_are_envelopes_or_the_expected_errors(seed: int) -> None:
    report = run(codecs, count=1500, seed=seed)
    assert [(failure.number, failure.error) for failure in report.failures] == []
    seen = set(report.outcomes)
    assert seen >= {"not an envelope", "duplicate key", "invalid payload", "delivered"}
    assert set(report.mutations) == {mutation.__name__ for mutation in MUTATIONS}


@pytest.mark.parametrize("sample", CORPUS, ids=lambda sample: sample.codec)
def test_every_message_to_start_from_is_a_good_one(sample: Sample) -> None:
    assert try_codec(sample) == "delivered"


def test_a_seed_repeats_a_run() -> None:
    first, again = (
        [mutate(CORPUS[0], Random(f"1/{number}")) for number in range(50)] for _ in range(2)
    )
    assert repr(first) == repr(again)
    assert len({sample.body for sample, _ in first}) > 25


@contextmanager
def broken() -> Generator[Try]:
    def try_one(sample: Sample) -> str:
        if b"\x00" in sample.body:
            raise LookupError("a NUL byte")
        return "fine"

    yield try_one


def test_a_failure_is_counted_shown_and_makes_the_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--count", "300", "--target", f"{__name__}:broken"]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert "FAILED: LookupError" in shown
    assert "of seed 1: " in shown


def test_a_run_without_failures_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "20", "--target", CODECS]) == 0
    assert "20 messages in" in capsys.readouterr().out


def test_raw_entries_are_counted_and_a_broker_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none(name: str) -> None:
        return None

    monkeypatch.setattr(raw, "find_broker", find_none)
    assert main(["--count", "120"]) == 0
    shown = capsys.readouterr().out
    assert "sqlite: 120 odd entries in" in shown
    assert "memory: 120 odd entries in" in shown
    assert "NOT RUN: rabbitmq, redis, redis-list, redis-pubsub, bullmq" in shown
    assert main(["--count", "120", "--raw", "rabbitmq"]) == 1, "it was asked for"


def test_a_transport_that_does_not_cope_makes_the_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(MemoryTransport):
        async def settle(self, settlements: Sequence[Settlement]) -> Sequence[None]:
            await super().settle([Complete(one.receipt) for one in settlements])
            return [None] * len(settlements)

    @asynccontextmanager
    async def forgetful(
        url: str, topology: Topology
    ) -> AsyncGenerator[tuple[MemoryTransport, MemoryEntries]]:
        transport = Forgetful()
        yield transport, MemoryEntries(transport)

    monkeypatch.setitem(raw.TRANSPORTS, "memory", (None, forgetful))
    monkeypatch.setattr(raw, "PATIENCE", 0.2)
    assert main(["--count", "50", "--raw", "memory"]) == 1
    assert "PROBLEM (seed 1)" in capsys.readouterr().out
