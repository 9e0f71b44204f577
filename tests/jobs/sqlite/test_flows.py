"""Jobs in an SQLite file that wait for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.jobs.sqlite.conftest import Connect, by_hand, fetch, ids, job

from matador.errors import (
    DuplicateJobError,
    UnstorableError,
)
from matador.jobs import RESULT, ActiveJob, Queue, Worker, chain, group
from matador.model.message import (
    Complete,
    DeadLetter,
    Message,
    Retry,
)
from matador.testing import wait_for
from matador.transports.sqlite import sweep


async def test_a_flow_is_added_as_a_whole_or_not_at_all(connect: Connect) -> None:
    transport = await connect()
    await transport.add_jobs([job("taken")])
    flow = [job("parent", children=2), job("child", parent="parent"), job("taken", parent="parent")]
    assert isinstance(await transport.add_flow("q", flow), DuplicateJobError)
    no_body: Any = None
    unstorable = Message("last", "q", no_body, {"job.parent": "parent"})
    assert isinstance(await transport.add_flow("q", [*flow[:2], unstorable]), UnstorableError)
    assert await transport.find_jobs("q", ["parent", "child"]) == [None, None]
    assert await transport.add_flow("q", flow[:2]) is None


async def test_a_long_chain_fails_and_is_retried_as_a_whole(connect: Connect) -> None:
    transport = await connect()
    length = 1500  # deeper than Python could call itself
    steps = [
        job("0", children=1),
        *(job(str(number), children=1, parent=str(number - 1)) for number in range(1, length)),
        job("first", parent=str(length - 1)),
    ]
    assert await transport.add_flow("q", steps) is None
    (delivery,) = await fetch(transport, 1)
    await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "broken")])
    counts = await transport.count_jobs("q")
    assert (counts.failed, counts.all_failed, counts.waiting) == (length + 1, length + 1, 0)
    (record,) = await transport.find_jobs("q", ["0"])
    assert record is not None
    assert record.error == "job 'first', which it waited for, has failed: broken"
    await transport.retry_job("q", "first")
    counts = await transport.count_jobs("q")
    assert (counts.failed, counts.waiting) == (0, length + 1)
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "first"
    await transport.settle([Complete(delivery.receipt, b"1")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == str(length - 1)
    assert await transport.child_results("q", str(length - 1)) == {"first": b"1"}


async def test_who_waits_for_a_removed_job_fails(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    await transport.remove_job("q", "c")
    (record,) = await transport.find_jobs("q", ["p"])
    assert record is not None
    assert (record.status, "it was removed" in str(record.error)) == ("failed", True)
    await transport.retry_job("q", "p")
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"


async def test_a_child_that_a_tool_sends_again_is_waited_for_again(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    (delivery,) = await fetch(transport, 1)
    await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "broken")])
    letters = {one.id: one.position async for one in transport.browse("q.undeliverable")}
    assert sorted(letters) == ["c", "p"]
    parent, child = await transport.take("q.undeliverable", [letters["p"], letters["c"]])
    assert parent is not None
    assert child is not None
    await transport.settle([Retry(parent.receipt, job("p", children=1))])
    await transport.settle([Retry(child.receipt, job("c", parent="p"))])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "c"  # the parent waits
    await transport.settle([Complete(delivery.receipt, b"5")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"
    assert await transport.child_results("q", "p") == {"c": b"5"}


async def test_only_the_children_of_a_job_decide_about_it(connect: Connect) -> None:
    transport = await connect()
    await transport.add_flow("q", [job("p", children=1), job("c", parent="p")])
    await transport.add_jobs([job("bad", parent="p"), job("good", parent="p")])
    found = {one.headers["job.id"]: one.receipt for one in await fetch(transport, 3)}
    await transport.settle(
        [DeadLetter(found["bad"], "undeliverable", "r"), Complete(found["good"], b"1")]
    )
    (record,) = await transport.find_jobs("q", ["p"])
    assert record is not None
    assert record.status == "waiting"
    await transport.settle([Complete(found["c"], b"2")])
    (delivery,) = await fetch(transport, 1)
    assert delivery.headers["job.id"] == "p"
    assert await transport.child_results("q", "p") == {"c": b"2"}


async def test_results_go_with_the_job_that_waited_for_them(
    file: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    transport = await connect()
    for name, keep in (("b", "count=1"), ("c", "count=1"), ("a", "age=0.1"), ("d", "count=0")):
        parent = job(name, children=1, keepFailed=keep)
        await transport.add_flow("q", [parent, job(f"{name}0", parent=name)])
        (child,) = await fetch(transport, 1)
        await transport.settle([Complete(child.receipt, b"1")])
        (delivery,) = await fetch(transport, 1)
        await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "r")])
    await wait_for(lambda: by_hand(file, "SELECT parent FROM job_children") == [("c",)], timeout=15)
    assert await ids(transport, "failed") == ["c"]


async def test_nothing_is_left_of_a_flow_that_is_done(file: Path, connect: Connect) -> None:
    queue = Queue("q", provider=await connect(), default_options={"remove_on_complete": True})
    flow = group(
        chain(queue.step("one", {"n": 1}), queue.step("one", {"n": RESULT})),
        queue.step("one", {"n": 2}),
        then=queue.step("all", {"n": RESULT}),
    )

    async def handle(one: ActiveJob[Any]) -> Any:
        return one.data["n"]

    await flow.add()
    async with Worker(queue, handle):
        await wait_for(
            lambda: by_hand(file, "SELECT all_completed FROM queues WHERE name = 'q'") == [(4,)]
        )
    assert by_hand(file, "SELECT count(*) FROM messages") == [(0,)]
    assert by_hand(file, "SELECT count(*) FROM job_children") == [(0,)]
