"""Dead letters: found, grouped, searched, paged, redriven, purged, edited; and hostile ones."""

from __future__ import annotations

import asyncio
import csv
import html
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboard.conftest import Serve, depth, fail_orders, is_idle
from tests.support.shop import OrderPlaced

from matador import Docket, Envelope, JsonCodec, Matador
from matador.dashboard import letter_index
from matador.dashboard.letter_index import IndexFilter
from matador.dashboard.sources import WatchedQueue
from matador.model.message import ERROR_TYPE_HEADER, REASON_HEADER, Message
from matador.runtime.dead_letters import Letter, Place, Selection
from matador.testing import wait_for
from matador.transports.base import Browsing

Shop = Callable[..., Matador]


async def put(
    app: Matador,
    count: int,
    *,
    error: str = "timeout after {} ms",
    subscriber: str = "charge",
    **data: object,
) -> None:
    """Put dead letters straight into their queue."""
    await app.transport.connect()
    try:
        await app.apply_topology()
        codec = JsonCodec()
        for start in range(0, count, 1000):
            messages: list[Message] = []
            for number in range(start, min(start + 1000, count)):
                docket = Docket(
                    created_at=datetime.now(UTC),
                    event_key="order.placed",
                    target_subscriber=subscriber,
                    importance="should-investigate",
                    attempts=3,
                    last_error=error.format(number),
                    original_queue="events",
                )
                payload = msgspec.json.encode({"order_id": f"o{number}", "amount": number, **data})
                envelope = Envelope(f"id-{number:06d}", msgspec.Raw(payload), docket)
                encoded = codec.encode(envelope)
                headers = {
                    **encoded.headers,
                    REASON_HEADER: "attempts used up",
                    ERROR_TYPE_HEADER: "TimeoutError",
                }
                queue = "shop.events.undeliverable"
                messages.append(Message(envelope.id, queue, encoded.body, headers))
            assert not any(await app.transport.send(messages))
    finally:
        await app.transport.disconnect()


async def test_letters_are_grouped_by_cause(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 30)
    async with serve(app) as browser:
        await browser.letters_known(30)
        page = await browser.get("/dead-letters")
        assert "timeout after &lt;n&gt; ms" in page
        assert page.count('class="cause"') == 1
        assert "30 dead letters" in page


async def test_a_group_is_redriven_and_the_worker_handles_it(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 25)
    async with serve(app) as browser:
        await browser.letters_known(25)
        group = re.search(r'/dead-letters\?group=(\w+)"', await browser.get("/dead-letters"))
        assert group is not None
        page = await browser.move(verb="redrive", scope="all", group=group[1])
        assert "25 of 25 redriven" in page
        await browser.letters_known(0)
        assert (await depth(app)).ready == 25


async def test_nothing_moves_before_the_confirmation(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 3)
    async with serve(app) as browser:
        await browser.letters_known(3)
        answer = await browser.post("/dead-letters/move", verb="purge", scope="all")
        location = answer.headers["location"]
        await wait_for(lambda: browser.desk.moves.recent[0].state == "counted", timeout=30)
        assert "<b>3 dead letters</b> would be purged" in await browser.get(location)
        await browser.post(f"{location}/confirm", 400, sure="yes")
        await browser.post(f"{location}/cancel")
        await browser.post(f"{location}/confirm", 409, sure="purge")
        assert "canceled" in await browser.get(location)
        assert browser.desk.index.count(IndexFilter()) == 3


async def test_some_selected_letters_are_purged(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 5)
    async with serve(app) as browser:
        await browser.letters_known(5)
        page = await browser.get("/dead-letters")
        numbers = re.findall(r'name="letter" value="(\d+)"', page)
        assert len(numbers) == 5
        path, chosen = "/dead-letters/move", numbers[:1]
        one = await browser.post(path, verb="purge", scope="some", letter=chosen)
        assert "Purge 1 selected dead letter<" in await browser.get(one.headers["location"])
        done = await browser.move(verb="purge", scope="some", letter=numbers[:2])
        assert "2 of 2 purged" in done
        await wait_for(lambda: browser.desk.monitor.snapshot.dead == 3, timeout=30)


async def test_a_page_that_is_still_open_never_names_a_later_letter(
    serve: Serve, shop: Shop
) -> None:
    app, other = shop(), shop()
    await put(app, 2)
    async with serve(app) as browser:
        await browser.letters_known(2)
        page = await browser.get("/dead-letters")
        numbers = re.findall(r'name="letter" value="(\d+)"', page)
        await browser.move(verb="purge", scope="all")
        await put(other, 1)
        browser.desk.monitor.look_soon()
        await browser.letters_known(1)
        assert "0 of 2 purged" in await browser.move(verb="purge", scope="some", letter=numbers)
        await browser.post(f"/dead-letters/{numbers[-1]}/edit", 404, payload="{}")
        await browser.letters_known(1)


async def test_the_page_says_that_the_broker_is_gone_and_still_shows_what_is_known(
    serve: Serve, shop: Shop
) -> None:
    app = shop()
    await put(app, 2)
    async with serve(app) as browser:
        await browser.letters_known(2)
        assert "the connection to" not in await browser.get("/dead-letters")
        await app.transport.disconnect()
        await wait_for(lambda: browser.desk.monitor.snapshot.problems, timeout=30)
        page = await browser.get("/dead-letters")
        assert "the connection to sqlite is disconnected" in page
        assert "2 dead letters" in page


async def test_a_payload_field_selects(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 120)
    async with serve(app) as browser:
        await browser.letters_known(120)
        page = await browser.get("/dead-letters?field=amount>110")
        assert page.count('name="letter"') == 9
        first = await browser.get("/dead-letters?field=amount>=0")
        assert first.count('name="letter"') == 50
        following = re.search(r'href="([^"]+)">Search on', first)
        assert following is not None
        second = await browser.get(html.unescape(following[1]))
        assert second.count('name="letter"') == 50
        assert "no payload has a field" in html.unescape(
            await browser.get("/dead-letters?field=amout=1")
        )
        await browser.get("/dead-letters?field=amount", 400)
        done = await browser.move(verb="redrive", scope="all", field="amount>110, order_id!=o119")
        assert "8 of 8 redriven" in done


async def test_letters_are_paged(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 120)
    async with serve(app) as browser:
        await browser.letters_known(120)
        seen: list[str] = []
        path = "/dead-letters?name=order.placed"
        while path:
            page = await browser.get(path)
            seen += re.findall(r"<code>(id-\d+)", page)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = html.unescape(older[1]) if older else ""
        assert seen == [f"id-{number:06d}" for number in reversed(range(120))]


async def test_letters_that_others_moved_disappear(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 10)
    async with serve(app) as browser:
        await browser.letters_known(10)
        other = shop()
        await other.transport.connect()
        office = other.dead_letters
        await office.purge(await office.choose(Selection(ids=("id-000003", "id-000007"))))
        await other.transport.disconnect()
        await browser.letters_known(8)
        assert "id-000003" not in await browser.get("/dead-letters")


async def test_a_letter_that_is_gone_says_so(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 1)
    async with serve(app) as browser:
        await browser.letters_known(1)
        await browser.get("/dead-letters/1")
        await browser.move(verb="purge", scope="all")
        assert "is gone" in await browser.get("/dead-letters/1", 404)
        await browser.get("/dead-letters/1/edit", 404)
        await browser.post("/dead-letters/1/edit", 404, payload="{}")


async def test_a_payload_is_edited_redriven_and_recorded(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app) as browser:
        await browser.letters_known(1)
        assert "&#34;amount&#34;: 500" in await browser.get("/dead-letters/1/edit")
        for wrong, said in (
            ("{", "not JSON"),
            ("[]", "Expected `object`"),
            ('{"order_id": "o0", "amount": "much"}', "amount"),
        ):
            answer = await browser.post("/dead-letters/1/edit", 400, payload=wrong)
            assert said in answer.text
            assert html.escape(wrong, quote=False)[:6] in answer.text.replace("&#34;", '"')
        # Browsers send CRLF for a line end, and send again what a refused form shows.
        text = '{\r\n  "order_id": "o0",\r\n  "amount": ""\r\n}'
        for _ in range(2):
            answer = await browser.post("/dead-letters/1/edit", 400, payload=text)
            shown = re.search(r"<textarea[^>]*>(.*?)</textarea>", answer.text, re.DOTALL)
            assert shown is not None
            text = html.unescape(shown[1]).replace("\n", "\r\n")
        fixed = text.replace('""', "5")
        await browser.post("/dead-letters/1/edit", 200, payload=fixed)
        await browser.letters_known(0)
    log = [
        json.loads(one) for one in (tmp_path / "history.db.audit.jsonl").read_text().splitlines()
    ]
    assert log[-1]["action"] == "edit and redrive"
    assert log[-1]["changes"] == {"amount": [500, 5]}
    async with shop() as running:
        await wait_for(lambda: is_idle(running), timeout=30)
        assert (await depth(running, "shop.events.undeliverable")).total == 0


async def test_masked_fields_are_never_shown_and_cannot_be_searched(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    app = shop()
    await put(
        app, 2, card_number="4111111111111111", customer={"Card_Number": "4222", "name": "Ada"}
    )
    async with serve(app, mask=("card_number",)) as browser:
        await browser.letters_known(2)
        for path in (
            "/dead-letters",
            "/dead-letters/1",
            "/dead-letters/1/edit",
            "/messages?id=id-0",
        ):
            page = await browser.get(path)
            assert "4111" not in page
            assert "4222" not in page
        assert "••••••" in await browser.get("/dead-letters/1")
        for field in ("card_number~4111", "customer.card_number=4222"):
            assert "is masked" in await browser.get(f"/dead-letters?field={field}", 400)
            await browser.post("/dead-letters/move", 400, verb="redrive", scope="all", field=field)
        edited = {
            "order_id": "changed",
            "amount": 1,
            "card_number": "••••••",
            "customer": {"Card_Number": "••••••", "name": "Bob"},
        }
        await browser.post("/dead-letters/1/edit", 200, payload=json.dumps(edited))
        moved = {**edited, "number": "••••••"}
        refused = await browser.post("/dead-letters/2/edit", 400, payload=json.dumps(moved))
        assert "is not known any more" in refused.text
        assert isinstance(app.transport, Browsing)
        bodies = [one.body async for one in app.transport.browse("shop.events")]
        (body,) = bodies
        assert b'"card_number":"4111111111111111"' in body
        assert b'"Card_Number":"4222"' in body
        assert b"Bob" in body
    assert "4111" not in (tmp_path / "history.db.audit.jsonl").read_text()


async def test_hostile_letters_stay_text(serve: Serve, shop: Shop) -> None:
    script = "<script>alert(1)</script>"
    app = shop()
    await put(app, 1, error=f"{script} \u202eevil", note=script, **{f'"><img src=x {script}': "x"})
    async with serve(app) as browser:
        await browser.letters_known(1)
        for path in (
            "/dead-letters",
            "/dead-letters/1",
            "/dead-letters/1/edit",
            "/handlers",
            "/messages?id=%3Cscript%3Ealert(1)%3C/script%3E",
            f"/dead-letters?error={script}&queue={script}&field=a={script}",
        ):
            page = await browser.get(path)
            assert "<script>alert" not in page
            assert "<img src=x" not in page
            assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)" in await browser.get("/dead-letters/1")


async def test_letters_that_cannot_be_decoded_are_shown_raw_unless_fields_are_masked(
    serve: Serve, shop: Shop
) -> None:
    app = shop()
    await app.transport.connect()
    await app.apply_topology()
    queue = "shop.events.undeliverable"
    bad = Message("bad", queue, b"\xff<script>card 4111", {REASON_HEADER: "malformed"})
    await app.transport.send([bad])
    await app.transport.disconnect()
    async with serve(app) as browser:
        await browser.letters_known(1)
        page = await browser.get("/dead-letters/1")
        assert "\\xff&lt;script&gt;card 4111" in page
        assert "cannot be edited" in await browser.get("/dead-letters/1/edit")
        await browser.get("/dead-letters?field=a=1")
    async with serve(app, mask=("card",)) as browser:
        await browser.letters_known(1)
        assert "4111" not in await browser.get("/dead-letters/1")


async def test_a_letter_that_cannot_be_indexed_hides_no_other(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop()
    await put(app, 3)
    real = letter_index._row

    def row(queue: WatchedQueue, place: Place, letter: Letter, *more: Any) -> Any:
        if letter.id == "id-000001":
            "\udcff".encode()
        return real(queue, place, letter, *more)

    monkeypatch.setattr(letter_index, "_row", row)
    async with serve(app) as browser:
        await browser.letters_known(2)
        assert "1 dead letter cannot be shown here" in await browser.get("/dead-letters")
        rounds = browser.desk.index._round
        await browser.desk.monitor.read_letters(whole=False, taking=False)
        assert browser.desk.index._round <= rounds + 4  # the queues are not read as a whole again


async def test_redriving_all_leaves_out_what_cannot_be_decoded(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 2)
    await app.transport.connect()
    bad = Message("bad", "shop.events.undeliverable", b"\xff", {REASON_HEADER: "malformed"})
    await app.transport.send([bad])
    await app.transport.disconnect()
    async with serve(app) as browser:
        await browser.letters_known(3)
        assert "2 of 2 redriven" in await browser.move(verb="redrive", scope="all")
        assert "1 of 1 purged" in await browser.move(verb="purge", scope="all")


async def test_two_people_redrive_the_same_letters_and_none_is_moved_twice(
    serve: Serve, shop: Shop
) -> None:
    app = shop()
    await put(app, 300)
    async with serve(app) as browser:
        await browser.letters_known(300)
        pages = await asyncio.gather(
            browser.move(verb="redrive", scope="all"), browser.move(verb="redrive", scope="all")
        )
        done = [re.findall(r"(\d+) of 300 redriven", page)[0] for page in pages]
        assert sum(map(int, done)) == 300
        assert (await depth(app, "shop.events")).ready == 300


async def test_it_runs_beside_an_application_in_one_process(serve: Serve, shop: Shop) -> None:
    app = shop("memory://")
    async with app:
        async with serve(app) as browser:
            await app.send(OrderPlaced("m1", 500))
            await browser.letters_known(1)
            await wait_for(lambda: browser.desk.monitor.snapshot.dead == 1, timeout=30)
            assert "1 dead letter of events" in await browser.get("/")
        assert app.transport.state.status == "connected"


@pytest.mark.slow
async def test_100_000_letters_are_paged_quickly(serve: Serve, shop: Shop) -> None:
    app = shop()
    await put(app, 100_000)
    async with serve(app) as browser:
        began = time.perf_counter()
        await browser.letters_known(100_000)
        print(f"read in {time.perf_counter() - began:.1f} s")
        group = re.search(r'/dead-letters\?group=(\w+)"', await browser.get("/dead-letters"))
        assert group is not None
        for path in (
            "/",
            "/queues",
            "/handlers",
            "/dead-letters",
            f"/dead-letters?group={group[1]}",
            "/dead-letters?before=50000",
            "/dead-letters?error=timeout after 77",
            "/dead-letters/70000",
            "/dead-letters?field=amount=99999",
            "/messages?id=id-09",
        ):
            began = time.process_time()  # of this process, whoever else is busy
            await browser.get(path)
            took = time.process_time() - began
            print(f"{path}: {took * 1000:.0f} ms")
            assert took < 5, path


async def test_dead_letters_are_exported(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    app = shop()
    await put(app, 3, error="=cmd|'/C calc'!A0")
    await put(app, 2, error="plain, with a comma")
    async with serve(app) as browser:
        await browser.letters_known(5)
        page = await browser.get("/dead-letters?error=plain")
        link = html.unescape(re.findall(r'href="(/dead-letters/export[^"]+)"', page)[0])
        rows = list(csv.DictReader((await browser.get(link)).splitlines()))
        assert [row["error"] for row in rows] == ["plain, with a comma"] * 2
        assert all(datetime.fromisoformat(row["died_at"]).tzinfo == UTC for row in rows)
        every = await browser.client.get("/dead-letters/export?format=csv")
        assert every.headers["content-disposition"] == 'attachment; filename="dead-letters.csv"'
        cells = [row["error"] for row in csv.DictReader(every.text.splitlines())]
        assert cells.count("'=cmd|'/C calc'!A0") == 3
        lines = (await browser.get("/dead-letters/export?format=jsonl")).splitlines()
        found = [json.loads(line) for line in lines]
        assert min(one["error"] for one in found) == "=cmd|'/C calc'!A0"
        assert len(found) == 5
        assert "order_id" not in every.text
        await browser.get("/dead-letters/export?format=xml", 400)
        await browser.get("/dead-letters/export?format=csv&field=amount>1", 400)
        assert "export dead letters" in await browser.get("/audit")


async def test_an_export_has_every_page(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matador.dashboard.pages.dead_letters.BATCH", 2)
    app = shop()
    await put(app, 5)
    async with serve(app) as browser:
        await browser.letters_known(5)
        lines = (await browser.get("/dead-letters/export?format=jsonl")).splitlines()
        assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 5
