"""Who gets in, what they may do, and what is refused: outsiders, readers, forged forms."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.dashboard.conftest import HOST, OPERATOR, READER, Serve, fail_orders

from matador import Matador
from matador.dashboard import DashboardOptions
from matador.dashboard.guard import HEADERS
from matador.dashboard.letter_index import IndexFilter
from matador.dashboard.options import is_known_host
from matador.dashboard.sessions import Sessions
from matador.errors import ConfigurationError

PAGES = [
    *("/", "/queues", "/handlers", "/jobs", "/messages", "/messages?id=x", "/dead-letters"),
    *("/workers", "/lake", "/audit", "/live?page=overview", "/moves/x", "/dead-letters/1"),
]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "shop.example.com"])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--token-file"):
        DashboardOptions(history="h.db", host=host)
    DashboardOptions(history="h.db", host=host, token=OPERATOR)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_this_machine_needs_none(host: str) -> None:
    assert not DashboardOptions(history="h.db", host=host).needs_login


def test_tokens_are_long_different_and_never_shown() -> None:
    with pytest.raises(ConfigurationError, match="at least 16"):
        DashboardOptions(history="h.db", token="short")
    for token, read_token in (
        (OPERATOR, OPERATOR),
        ({"ada": OPERATOR, "bob": OPERATOR}, None),
        ({"ada": OPERATOR}, {"ada": READER}),
    ):
        with pytest.raises(ConfigurationError, match="the same"):
            DashboardOptions(history="h.db", token=token, read_token=read_token)
    with pytest.raises(ConfigurationError, match="the token of ada must"):
        DashboardOptions(history="h.db", token={"ada": ""})
    for name in ("a\nb", "x" * 61):
        with pytest.raises(ConfigurationError, match="no name for a user"):
            DashboardOptions(history="h.db", token={name: OPERATOR})
    shown = repr(DashboardOptions(history="h.db", token={"ada": OPERATOR}))
    assert OPERATOR not in shown
    shown = repr(DashboardOptions(history="h.db", token=OPERATOR, read_token=READER))
    assert OPERATOR not in shown
    assert READER not in shown


@pytest.mark.parametrize("path", PAGES)
async def test_an_outsider_gets_nothing(
    serve: Serve, shop: Callable[..., Matador], path: str
) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        page = await browser.client.get(path, headers={"accept": "text/html"})
        assert page.status_code == 303
        assert page.headers["location"].startswith("/login?next=")
        plain = await browser.client.get(path)
        assert plain.status_code == 401
        assert len(plain.text) < 100


async def test_an_outsider_can_change_nothing(serve: Serve, shop: Callable[..., Matador]) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        answer = await browser.raw_post("/dead-letters/move", {"verb": "purge", "scope": "all"})
        assert answer.status_code == 401


async def test_a_wrong_token_is_refused_recorded_and_finally_blocked(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matador.dashboard.pages.access._PAUSE", 0.0)
    async with serve(shop(), token=OPERATOR) as browser:
        for _ in range(10):
            assert (await browser.login("wrong-token-wrong-token")).status_code == 403
        assert (await browser.login(OPERATOR)).status_code == 429
        assert browser.client.cookies == {}
    log = (tmp_path / "history.db.audit.jsonl").read_text()
    assert log.count("login refused") == 10
    assert "wrong-token" not in log


@pytest.mark.parametrize("configured", [{"token": OPERATOR}, {"read_token": READER}])
@pytest.mark.parametrize("form", [{"next": "/"}, {"token": ""}, {"token": " "}, {"token": "\0"}])
async def test_an_empty_or_missing_token_opens_nothing(
    serve: Serve,
    shop: Callable[..., Matador],
    configured: dict[str, str],
    form: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("matador.dashboard.pages.access._PAUSE", 0.0)
    async with serve(shop(), **configured) as browser:
        answer = await browser.raw_post("/login", form)
        assert (answer.status_code, dict(browser.client.cookies)) == (403, {})
        for cookie in ("", "x"):
            browser.client.cookies.set("matador_8080", cookie)
            assert (await browser.client.get("/")).status_code == 401


@pytest.mark.parametrize("name", ["token", "read_token"])
def test_an_empty_token_is_no_token(name: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 16"):
        DashboardOptions(history="h.db", host="0.0.0.0", **{name: ""})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("origin", [None, "", "null"])
async def test_a_login_from_nowhere_is_refused(
    serve: Serve, shop: Callable[..., Matador], origin: str | None
) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        answer = await browser.raw_post("/login", {"token": OPERATOR}, origin=origin)
        assert (answer.status_code, dict(browser.client.cookies)) == (403, {})


async def test_the_right_token_opens_a_session(serve: Serve, shop: Callable[..., Matador]) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        answer = await browser.login(OPERATOR)
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert OPERATOR not in cookie
        assert "operator" in await browser.get("/")
        await browser.post("/logout")
        assert (await browser.client.get("/")).status_code == 401


async def test_users_have_names_in_the_audit_log(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path
) -> None:
    app = shop()
    tokens = {"ada": OPERATOR, "bob": "another-token-0123456789"}
    async with app, serve(app, token=tokens, read_token={"eve": READER}) as browser:
        for token, action in ((OPERATOR, "pause"), (tokens["bob"], "resume")):
            await browser.login(token)
            await browser.post("/queues/change?queue=events", action=action)
        await browser.login(READER)
        await browser.post("/queues/change?queue=events", 403, action="pause")
        assert '<span class="soft">eve</span>' in await browser.get("/audit")
    log = (tmp_path / "history.db.audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in log]
    assert [(one["who"], one["action"]) for one in entries] == [
        ("operator ada at 127.0.0.1", "login"),
        ("operator ada at 127.0.0.1", "pause queue"),
        ("operator bob at 127.0.0.1", "login"),
        ("operator bob at 127.0.0.1", "resume queue"),
        ("read-only eve at 127.0.0.1", "login"),
    ]


async def test_a_login_leads_to_no_other_site(serve: Serve, shop: Callable[..., Matador]) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        for evil in ("https://evil.example", "//evil.example", "/\\evil.example"):
            answer = await browser.raw_post("/login", {"token": OPERATOR, "next": evil})
            assert answer.headers["location"] == "/"


async def test_a_reader_sees_but_cannot_redrive_purge_or_edit(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app, token=OPERATOR, read_token=READER) as browser:
        await browser.login(READER)
        await browser.letters_known(1)
        page = await browser.get("/dead-letters")
        assert "was declined" in page
        assert "Redrive" not in page
        for path, form in (
            ("/dead-letters/move", {"verb": "redrive", "scope": "all"}),
            ("/dead-letters/1/edit", {"payload": "{}"}),
            ("/moves/x/confirm", {}),
            ("/jobs/queue?queue=emails", {"action": "pause"}),
            ("/queues/change?queue=events", {"action": "pause"}),
            ("/queues/cancel?queue=events", {"message": "x 1", "sure": "yes"}),
            ("/lake/replays", {"event": "order.placed"}),
        ):
            await browser.post(path, 403, **form)
        await browser.letters_known(1)
        assert not browser.desk.moves.recent
        queues = await browser.get("/queues")
        assert "shop.events" in queues
        assert ">Pause</button>" not in queues
        assert "paused" not in queues


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ({"csrf": "forged"}, {}),
        ({}, {}),
        ({"csrf": True}, {"origin": "https://evil.example"}),
        ({"csrf": True}, {"origin": "null"}),
        ({"csrf": True}, {"origin": ""}),
        ({"csrf": True}, {"origin": None}),
        ({"csrf": ""}, {}),
    ],
)
async def test_forged_forms_are_refused(
    serve: Serve,
    shop: Callable[..., Matador],
    form: dict[str, object],
    headers: dict[str, str | None],
) -> None:
    async with serve(shop()) as browser:
        if form.get("csrf") is True:
            form = {"csrf": await browser.csrf()}
        await browser.get("/")
        sent = {"verb": "purge", "scope": "all", **form}
        answer = await browser.raw_post("/dead-letters/move", sent, **headers)
        assert answer.status_code == 403
        assert not browser.desk.moves.recent


async def test_a_form_of_a_session_that_has_ended_leads_to_the_login_and_loses_nothing(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        await browser.login(OPERATOR)
        form = {"csrf": await browser.csrf(), "payload": '{"note": "<b>typed</b>"}'}
        await browser.raw_post("/logout", {"csrf": form["csrf"]})
        page = f"http://{HOST}/dead-letters/1/edit?a=b"
        sent = {"accept": "text/html", "referer": page}
        answer = await browser.raw_post("/dead-letters/1/edit", form, **sent)
        assert answer.status_code == 401
        assert "Nothing was done" in answer.text
        assert "&lt;b&gt;typed&lt;/b&gt;" in answer.text
        assert 'href="/login?next=/dead-letters/1/edit%3Fa%3Db"' in answer.text
        foreign = {**sent, "referer": "https://evil.example/x"}
        answer = await browser.raw_post("/dead-letters/1/edit", form, **foreign)
        assert 'href="/login?next=/"' in answer.text


async def test_without_tokens_an_old_form_leads_back_and_nobody_is_asked_to_log_in(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    async with serve(shop()) as browser:
        assert "Log out" not in await browser.get("/")
        asked = await browser.client.get("/login")
        assert (asked.status_code, asked.headers["location"]) == (303, "/")
        browser.client.cookies.clear()  # the dashboard was restarted, and a page was left open
        sent = {"accept": "text/html", "referer": f"http://{HOST}/queues"}
        answer = await browser.raw_post("/queues/change?queue=events", {"action": "pause"}, **sent)
        assert answer.status_code == 403
        assert "too old" in answer.text
        assert 'href="/queues"' in answer.text
        assert "Log in" not in answer.text


async def test_a_foreign_name_is_refused(serve: Serve, shop: Callable[..., Matador]) -> None:
    async with serve(shop(), allowed_hosts=("shop.example.com",)) as browser:
        assert (await browser.client.get("/", headers={"host": "evil.example"})).status_code == 421
        assert (await browser.client.get("/", headers={"host": ""})).status_code == 421
        known = {"host": "shop.example.com:8080"}
        assert (await browser.client.get("/", headers=known)).status_code == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("10.0.0.5:80", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("localhost.evil.example:80", False),
    ],
)
def test_which_names_are_known(host: str, known: bool) -> None:
    assert is_known_host(host, ()) is known


async def test_every_answer_has_the_security_headers(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    async with serve(shop(), token=OPERATOR) as browser:
        for path in ("/login", "/", "/static/style.css", "/nowhere", "/static/../app.py"):
            answer = await browser.client.get(path)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value
        policy = HEADERS["content-security-policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


async def test_no_page_has_inline_script_or_style(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    app = shop()
    await fail_orders(app, [500, 1])
    async with serve(app) as browser:
        await browser.letters_known(1)
        for path in PAGES[:10]:
            page = await browser.get(path)
            assert "<style" not in page
            assert " style=" not in page
            assert " onclick" not in page
            assert page.count("<script") == page.count('<script src="/static/dashboard.js" defer>')


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused(
    serve: Serve, shop: Callable[..., Matador], method: str
) -> None:
    async with serve(shop()) as browser:
        assert (await browser.client.request(method, "/dead-letters")).status_code == 405


async def test_huge_and_odd_forms_are_refused(serve: Serve, shop: Callable[..., Matador]) -> None:
    async with serve(shop()) as browser:
        csrf = await browser.csrf()
        large = await browser.raw_post("/lake/query", {"csrf": csrf, "sql": "x" * (3 << 20)})
        assert large.status_code == 413
        headers = {"origin": f"http://{HOST}"}
        json_ = await browser.client.post("/lake/query", json={"csrf": csrf}, headers=headers)
        assert json_.status_code == 415
        form = {**headers, "content-type": "application/x-www-form-urlencoded"}
        broken = await browser.client.post("/lake/query", content=b"\xff=%ff", headers=form)
        assert broken.status_code == 400


def test_a_session_ends_and_their_number_is_bounded() -> None:
    now = 0.0
    sessions = Sessions(DashboardOptions(history="h.db"), lambda: now)
    first = sessions.begin("operator")
    assert sessions.find(first.id) == first
    now = 13 * 3600.0
    assert sessions.find(first.id) is None
    old = sessions.begin("operator")
    for _ in range(1000):
        sessions.begin("operator")
    assert sessions.find(old.id) is None


async def test_nothing_is_done_that_cannot_be_recorded(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path
) -> None:
    app = shop()
    await fail_orders(app, [500])
    (tmp_path / "audit").mkdir()  # a folder is no file
    async with serve(app, audit=tmp_path / "audit") as browser:
        await browser.letters_known(1)
        answer = await browser.post("/dead-letters/move", verb="redrive", scope="all")
        location = answer.headers["location"]
        move = browser.desk.moves.find(location.rpartition("/")[2])
        assert move is not None
        assert move.task is not None
        await move.task
        refused = await browser.post(f"{location}/confirm", 503)
        assert "so nothing was done" in refused.text
        assert move.state == "counted"
        assert browser.desk.monitor.snapshot.dead == 1


async def test_a_line_that_a_full_disk_cut_off_hides_no_action(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.db.audit.jsonl"
    write = os.write

    def cut_off(file: int, data: bytes) -> int:
        return write(file, data[:20])

    app = shop()
    async with app, serve(app) as browser:
        await browser.post("/queues/change?queue=events", action="pause")
        with monkeypatch.context() as full:
            full.setattr(os, "write", cut_off)
            await browser.post("/queues/change?queue=events", 503, action="resume")
        assert not path.read_bytes().endswith(b"\n")
        for action in ("resume", "pause"):
            await browser.post("/queues/change?queue=events", action=action)
        actions = [one["action"] for one in browser.desk.audit.last(9)]
        assert actions == ["pause queue", "resume queue", "pause queue"]
        assert "resume queue" in await browser.get("/audit")
    assert len(path.read_text().splitlines()) == 4


async def test_the_audit_log_names_the_cause_and_the_selected_letters(
    serve: Serve, shop: Callable[..., Matador]
) -> None:
    app = shop()
    await fail_orders(app, [500, 600])
    async with serve(app) as browser:
        await browser.letters_known(2)
        (group,) = browser.desk.index.groups(IndexFilter(), 9)
        chosen = browser.desk.index.entries([1])[0]
        await browser.move(verb="purge", letter="1")
        await browser.move(verb="purge", scope="all", group=group.signature)
        page = await browser.get("/audit")
        assert chosen.id in page
        assert "DontRetry: order o&lt;n&gt; of &lt;n&gt; was declined" in page


async def test_the_audit_log_names_who_did_what(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path
) -> None:
    app = shop()
    await fail_orders(app, [500, 600])
    async with serve(app, token=OPERATOR) as browser:
        await browser.login(OPERATOR)
        await browser.letters_known(2)
        await browser.move(verb="redrive", scope="all")
        page = await browser.get("/audit")
        assert "redrive done" in page
    path = tmp_path / "history.db.audit.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["action"] for one in entries] == ["login", "redrive", "redrive done"]
    assert entries[1]["letters"] == 2
    assert entries[1]["who"].startswith("operator ")
