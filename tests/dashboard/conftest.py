"""A dashboard over a real application, and a browser without a screen: forms, cookies, tokens."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.shop import OrderPaid, OrderPlaced, subscribed

from matador import DontRetry, Envelope, Hooks, Matador, Schema, Topology
from matador.dashboard import Dashboard, DashboardOptions
from matador.dashboard.desk import Desk
from matador.dashboard.letter_index import IndexFilter
from matador.model.message import QueueDepth
from matador.testing import wait_for
from matador.transports.base import Measuring

OPERATOR = "operator-token-0123456789"
READER = "reader-token-0123456789"
HOST = "127.0.0.1:8080"


async def charge(envelope: Envelope[OrderPlaced]) -> None:
    """Refuses large amounts."""
    if envelope.data.amount > 100:
        raise DontRetry(f"order {envelope.data.order_id} of {envelope.data.amount} was declined")


async def nothing(envelope: Envelope[Any]) -> None:
    """Does nothing."""


SCHEMA = Schema(
    {
        OrderPlaced: [subscribed(charge, "charge"), subscribed(nothing, "email-receipt")],
        OrderPaid: [subscribed(nothing, "book")],
    }
)


@dataclass
class Browser:
    """Asks a dashboard for pages, as a browser does."""

    client: httpx.AsyncClient
    dashboard: Dashboard

    @property
    def desk(self) -> Desk:
        return self.dashboard._pages.state.desk

    async def get(self, path: str, status: int = 200, **headers: str) -> str:
        answer = await self.client.get(path, headers={"accept": "text/html", **headers})
        assert answer.status_code == status, answer.text[:1000]
        return answer.text

    async def csrf(self, path: str = "/lake") -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', await self.get(path))
        assert found is not None
        return found[1]

    async def post(self, path: str, status: int = 303, **form: Any) -> httpx.Response:
        """Send a form of the dashboard."""
        form.setdefault("csrf", await self.csrf())
        answer = await self.raw_post(path, form)
        assert answer.status_code == status, answer.text[:2000]
        return answer

    async def raw_post(
        self, path: str, form: dict[str, Any], **headers: str | None
    ) -> httpx.Response:
        """Send a form with other headers; None leaves one out."""
        given = {"origin": f"http://{HOST}", **headers}
        sent = {name: value for name, value in given.items() if value is not None}
        return await self.client.post(path, data=form, headers=sent)

    async def login(self, token: str) -> httpx.Response:
        return await self.raw_post("/login", {"token": token, "next": "/"})

    async def letters_known(self, number: int) -> None:
        """Wait until the index of dead letters has this many."""
        await wait_for(lambda: self.desk.index.count(IndexFilter()) == number, timeout=120)

    async def move(self, **form: Any) -> str:
        """Count, confirm, and wait for the end; the last page."""
        location = (await self.post("/dead-letters/move", **form)).headers["location"]
        move = self.desk.moves.find(location.rpartition("/")[2])
        assert move is not None
        await wait_for(lambda: move.state == "counted", timeout=60)
        await self.post(f"{location}/confirm", sure="purge")
        await wait_for(lambda: move.is_over, timeout=60)
        return await self.get(location)


Serve = Callable[..., AbstractAsyncContextManager[Browser]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a dashboard: ``async with serve(app, mask=("amount",)) as browser``."""

    @asynccontextmanager
    async def serving(*services: Any, **options: Any) -> AsyncGenerator[Browser]:
        options.setdefault("history", tmp_path / "history.db")
        dashboard = Dashboard(services, DashboardOptions(**options))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(dashboard.running())
            transport = httpx.ASGITransport(dashboard)
            client = httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")
            yield Browser(await stack.enter_async_context(client), dashboard)

    return serving


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., Matador]:
    """A shop on SQLite, or elsewhere, whose cashier declines large amounts."""

    def make(url: str = "", *, hooks: list[Hooks] | None = None) -> Matador:
        return Matador(
            url or f"sqlite:///{tmp_path}/shop.db",
            schema=SCHEMA,
            topology=Topology("shop", queues=["events"]),
            consume_from=["events"],
            hooks=hooks or [],
        )

    return make


async def fail_orders(app: Matador, amounts: list[int], prefix: str = "o") -> None:
    """Send orders, and let a worker handle all of them."""
    async with app:
        for number, amount in enumerate(amounts):
            await app.send(OrderPlaced(f"{prefix}{number}", amount), correlation_id=f"c{number}")
        await wait_for(lambda: is_idle(app), timeout=60)


async def is_idle(app: Matador) -> bool:
    """Is nothing waiting, and nothing being handled?"""
    return (await depth(app)).total == 0 and app.state.is_idle


async def depth(app: Matador, queue: str = "shop.events") -> QueueDepth:
    """How many messages a queue has."""
    assert isinstance(app.transport, Measuring)
    return await app.transport.depth(queue)
