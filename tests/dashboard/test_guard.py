"""What stands before every page, without the pages: each check by itself, and its absent case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from tests.dashboard.conftest import HOST, OPERATOR, READER

from matador.dashboard import DashboardOptions
from matador.dashboard.guard import Guard, cookie, local_path, read_number
from matador.dashboard.masking import MASK, Masking
from matador.dashboard.sessions import Session, Sessions
from matador.errors import ConfigurationError

ORIGIN = {"origin": f"http://{HOST}"}
FORM = {**ORIGIN, "content-type": "application/x-www-form-urlencoded"}


class Behind:
    """The guard of a page that tells what it was given."""

    def __init__(self, **options: Any) -> None:
        made = DashboardOptions(history="h.db", **options)
        self.sessions, self.scopes = Sessions(made), list[Scope]()
        self.guard = Guard(self.page, made, self.sessions, str)
        transport = httpx.ASGITransport(self.guard)
        self.client = httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            form = Request(scope).scope["state"].get("form")
            await JSONResponse({"form": form})(scope, receive, send)

    def enter(self, session: Session) -> None:
        self.client.cookies.set("matador_8080", session.id)

    async def post(self, path: str, content: str | AsyncIterator[bytes], **headers: str) -> int:
        sent = {**FORM, **headers}
        return (await self.client.post(path, content=content, headers=sent)).status_code


@pytest.mark.parametrize(
    ("csrf", "status"), [("csrf={}", 200), ("csrf=", 403), ("", 403), ("csrf=x", 403)]
)
async def test_a_form_needs_the_token_of_its_session(csrf: str, status: int) -> None:
    behind = Behind(token=OPERATOR)
    session = behind.sessions.begin("operator")
    assert await behind.post("/act", csrf.format(session.csrf)) == 401
    behind.enter(session)
    assert await behind.post("/act", csrf.format(session.csrf)) == status
    other = behind.sessions.begin("operator")
    assert await behind.post("/act", f"csrf={other.csrf}") == 403
    assert len(behind.scopes) == (status == 200)


@pytest.mark.parametrize("csrf", ["", "csrf=", "csrf=x"])
async def test_without_tokens_a_form_needs_a_session_too(csrf: str) -> None:
    behind = Behind()
    assert await behind.post("/act", csrf) == 403
    assert behind.scopes == []


async def test_a_reader_may_only_read() -> None:
    behind = Behind(token=OPERATOR, read_token=READER)
    session = behind.sessions.begin("read-only")
    behind.enter(session)
    asked = {path: await behind.post(path, f"csrf={session.csrf}") for path in ("/act", "/logout")}
    assert asked == {"/act": 403, "/logout": 200}
    assert (await behind.client.get("/act")).status_code == 200


async def test_a_visitor_gets_one_session_where_nobody_must_log_in() -> None:
    behind = Behind()
    first = await behind.client.get("/")
    assert first.headers["set-cookie"].startswith("matador_8080=")
    assert "set-cookie" not in (await behind.client.get("/")).headers
    first, second = (scope["state"]["session"] for scope in behind.scopes)
    assert (first, first.role) == (second, "operator")


async def test_a_visitor_is_sent_to_the_login_and_back_again() -> None:
    behind = Behind(token=OPERATOR)
    browser = {"accept": "text/html"}
    answer = await behind.client.get("/queues?queue=a&b=c", headers=browser)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=/queues%3Fqueue%3Da%26b%3Dc"
    assert "set-cookie" not in answer.headers
    assert (await behind.client.get("/queues", headers=browser)).headers["location"] == (
        "/login?next=/queues"
    )
    assert (await behind.client.get("/queues")).status_code == 401
    assert behind.scopes == []
    assert (await behind.client.get("/login")).status_code == 200
    assert (await behind.client.get("/static/style.css")).status_code == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        (None, None, 200),
        ("none", None, 200),
        ("same-origin", "cors", 200),
        ("cross-site", "navigate", 200),
        ("same-site", "navigate", 200),
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
    ],
)
async def test_other_sites_may_link_here_but_load_nothing(
    site: str | None, mode: str | None, status: int
) -> None:
    given = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    headers = {name: value for name, value in given.items() if value is not None}
    assert (await Behind().client.get("/", headers=headers)).status_code == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_no_page_sees_another_method(method: str) -> None:
    behind = Behind()
    assert (await behind.client.request(method, "/", headers=ORIGIN)).status_code == 405
    assert behind.scopes == []


async def test_a_form_has_a_largest_size_and_a_largest_number_of_fields() -> None:
    behind = Behind(token=OPERATOR)
    most = "a=" + "x" * ((2 << 20) - 2)
    assert await behind.post("/login", most) == 200
    assert await behind.post("/login", most + "x") == 413
    assert await behind.post("/login", "&".join(["a=b"] * 10_000)) == 200
    assert await behind.post("/login", "&".join(["a=b"] * 10_001)) == 400
    odd = {"content-type": "application/x-www-form-urlencoded ; charset=utf-8"}
    assert await behind.post("/login", "a=b", **odd) == 200
    assert await behind.post("/login", "a=b", **{"content-type": "text/plain"}) == 415


async def test_a_form_keeps_empty_fields_and_gets_plain_line_ends() -> None:
    answer = await Behind(token=OPERATOR).client.post(
        "/login", content="a=&b=1%0D%0A2&b=3", headers=FORM
    )
    assert answer.json() == {"form": {"a": [""], "b": ["1\n2", "3"]}}


async def test_a_form_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matador.dashboard.guard._PATIENCE", 0.0)
    behind, sent = Behind(token=OPERATOR), list[Message]()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = {"host": HOST, **FORM}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/login", "headers": raw}
    await behind.guard({**scope, "query_string": b"", "server": (HOST, 80)}, receive, send)
    assert (sent[0]["status"], behind.scopes) == (408, [])


async def test_a_websocket_reaches_nothing_and_the_server_may_start() -> None:
    behind = Behind()

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    await behind.guard({"type": "websocket", "path": "/"}, receive, send)
    assert behind.scopes == []
    await behind.guard({"type": "lifespan"}, receive, send)
    assert [scope["type"] for scope in behind.scopes] == ["lifespan"]


def test_a_cookie_is_for_one_port_and_secure_where_the_page_is() -> None:
    plain: Scope = {
        "type": "http",
        "scheme": "http",
        "path": "/",
        "headers": [],
        "server": ("h", 81),
    }
    assert cookie(plain, "x") == "matador_81=x; Path=/; HttpOnly; SameSite=Strict"
    assert cookie({**plain, "scheme": "https"}, "x").endswith("; Secure")
    assert cookie(plain, "", lasting=False).endswith("; Max-Age=0")


@pytest.mark.parametrize(
    ("path", "safe"),
    [("/a?b", "/a?b"), ("a", "/"), ("", "/"), ("//a", "/"), ("/\\a", "/"), ("/a\n", "/")],
)
def test_only_paths_of_ours_are_led_to(path: str, safe: str) -> None:
    assert local_path(path) == safe


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("9" * 18, 10**18 - 1),
        ("1" * 19, None),
        ("", None),
        ("-1", None),
        ("\u0663", None),
    ],
)
def test_numbers_fit_into_a_database(text: str, number: int | None) -> None:
    assert read_number(text) == number


def test_wrong_tokens_block_their_address_for_a_minute() -> None:
    now = 0.0
    sessions = Sessions(DashboardOptions(history="h.db"), lambda: now)
    for number in range(10):
        assert not sessions.is_blocked("there")
        now = float(number)
        sessions.failed("there")
    assert sessions.is_blocked("there")
    assert not sessions.is_blocked("elsewhere")
    now = 59.9
    assert sessions.is_blocked("there")
    now = 60.0  # the first of them is forgiven, and not the others
    assert not sessions.is_blocked("there")
    sessions.failed("there")
    assert sessions.is_blocked("there")


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    sessions = Sessions(DashboardOptions(history="h.db"), lambda: 0.0)
    for address in ("first", "second"):
        for _ in range(9):
            sessions.failed(address)
    for number in range(9_998):
        sessions.failed(str(number))
    sessions.failed("first")
    sessions.failed("one more")  # `second` failed longest ago
    sessions.failed("second")
    assert (sessions.is_blocked("first"), sessions.is_blocked("second")) == (True, False)


def test_a_session_ends_after_twelve_hours_or_with_a_logout() -> None:
    now = 0.0
    sessions = Sessions(DashboardOptions(history="h.db"), lambda: now)
    first, second = sessions.begin("operator", "ada"), sessions.begin("read-only")
    assert (first.label, len(second.label)) == ("ada", 8)
    assert second.label not in second.id
    assert sessions.find(None) is sessions.find("") is sessions.find("x") is None
    sessions.end(second)
    sessions.end(second)
    assert sessions.find(second.id) is None
    now = 12 * 3600 - 0.1
    assert sessions.find(first.id) is first
    now = 12 * 3600.0
    assert sessions.find(first.id) is None
    now = 0.0  # it is gone, and not only hidden
    assert sessions.find(first.id) is None


def test_masked_fields_are_hidden_at_any_depth_and_in_any_case() -> None:
    masking = Masking([" Card ", ""])
    value = {"CARD": 1, "a": [{"card": {"b": 2}}, ({"card": 3},)], "card_number": 4}
    hidden = {"CARD": MASK, "a": [{"card": MASK}, [{"card": MASK}]], "card_number": 4}
    assert masking.shown(value) == hidden
    assert (bool(masking), bool(Masking([" "]))) == (True, False)
    assert Masking().shown(value) is value
    with pytest.raises(ConfigurationError, match="'card' is masked"):
        masking.check_search(["amount", "card"])
    masking.check_search(["amount"])


def in_list(value: Any) -> Any:
    return [value]


def in_mapping(value: Any) -> Any:
    return {"a": value}


@pytest.mark.parametrize("wrap", [in_list, in_mapping])
def test_what_is_nested_too_deeply_is_hidden_whole(wrap: Callable[[Any], Any]) -> None:
    def nested(depth: int, inside: Any) -> Any:
        for _ in range(depth):
            inside = wrap(inside)
        return inside

    masking = Masking(["card"])
    assert masking.shown(nested(100, "x")) == nested(100, "x")
    assert masking.shown(nested(101, "x")) == nested(101, MASK)


@pytest.mark.parametrize(
    ("edited", "original", "restored"),
    [
        ({"card": MASK, "a": 2}, {"card": 1, "a": 1}, {"card": 1, "a": 2}),
        ({"card": 5}, {"card": 1}, {"card": 5}),
        ({"new": MASK}, {}, {"new": MASK}),
        ({"a": MASK}, {"a": 1}, {"a": MASK}),
        ([{"card": MASK}], [{"card": 1}], [{"card": 1}]),
        ([{"card": MASK}, 2], [{"card": 1}], [{"card": MASK}, 2]),
        ({"a": {"card": MASK}}, {"a": {"card": 1}}, {"a": {"card": 1}}),
        ({"a": {"card": MASK}}, {"a": [1]}, {"a": {"card": MASK}}),
        ([MASK], {"a": 1}, [MASK]),
    ],
)
def test_an_edit_gets_back_what_it_could_not_see(edited: Any, original: Any, restored: Any) -> None:
    masking = Masking(["card"])
    found = masking.restored(edited, original)
    assert found == restored
    assert masking.is_left(found) is (MASK in str(restored))
