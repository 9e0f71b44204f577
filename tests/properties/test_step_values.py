"""Whatever a step returns comes back exactly, or is refused before it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone
from enum import Enum, Flag
from typing import Any, NamedTuple, cast
from uuid import uuid4
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.brokers import broker_url

from matador import MemoryCheckpointStore, RedisCheckpointStore, SqliteCheckpointStore
from matador.errors import UnstorableStepValueError
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.hooks import HookSet
from matador.runtime.steps import Steps


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None


@attrs.frozen
class Pair:
    first: Any
    second: int = 0


class Row(msgspec.Struct, frozen=True):
    cells: Any
    count: int = 0


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    value: Any
    other: Any = None


class Named(NamedTuple):
    x: int
    y: int


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Bag(dict[str, Any]):
    pass


class Color(Enum):
    RED = "r"
    BLUE = 2


class Flags(Flag):
    A = 1
    B = 2


ZONES = st.sampled_from(
    [
        None,
        UTC,
        timezone(timedelta(hours=5, minutes=30, seconds=1)),
        timezone(timedelta(hours=1), "named"),
        ZoneInfo("Europe/Berlin"),
        ZoneInfo("UTC"),
    ]
)
HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text()
    | st.text(st.characters())
    | st.binary()
    | st.datetimes(timezones=ZONES)
    | st.dates()
    | st.times(timezones=ZONES)
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.sampled_from([*Color, *Flags, Flags.A | Flags.B, Named(1, 2), Text("x"), Number(1)])
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Pair, inner)
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE | st.sampled_from(["#tuple", "#", "value"]), inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=2).map(Bag)
        | st.builds(Point, inner, inner)
        | st.builds(Pair, inner)
        | st.builds(Row, inner)
        | st.builds(Model, value=inner)
        | st.builds(Model, value=inner, other=inner)
    ),
    max_leaves=10,
)


def shape(value: Any) -> Any:
    """A value and its types, all the way down, so that two can be compared by ``==``."""
    kind = cast("type[Any]", type(value))
    parts: Any = repr(value)
    if issubclass(kind, dict):
        parts = [(shape(key), shape(one)) for key, one in value.items()]
    elif issubclass(kind, list | tuple):
        parts = [shape(one) for one in value]
    elif issubclass(kind, set | frozenset):
        parts = sorted((shape(one) for one in value), key=repr)
    elif kind in (Point, Pair, Row):
        parts = [shape(getattr(value, name)) for name in kind.__match_args__]
    elif kind is Model:
        parts = [shape(vars(value)), sorted(value.model_fields_set)]
    return kind, parts


Open = Callable[[], Any]


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.broker)], scope="module"
)
def open_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens the same store again and again, as a restart does."""
    memory = MemoryCheckpointStore()
    file = tmp_path_factory.mktemp("steps") / "steps.db"
    url = broker_url("redis") if request.param == "redis" else ""
    prefix = f"steps-{uuid4().hex[:8]}"

    @asynccontextmanager
    async def opened() -> AsyncGenerator[CheckpointStore]:
        store: Any = memory
        if request.param == "sqlite":
            store = SqliteCheckpointStore(file)
        elif request.param == "redis":
            store = RedisCheckpointStore(url, prefix=prefix)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    return opened


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(values=st.lists(VALUES, min_size=1, max_size=8))
def test_a_value_comes_back_or_is_refused(open_store: Open, values: list[Any]) -> None:
    async def before_and_after() -> None:
        before = [shape(value) for value in values]
        envelope, kept = uuid4().hex, dict[str, Any]()
        async with open_store() as store:
            steps = Steps(store, HookSet(), envelope, "charge")
            for at, value in enumerate(values):
                try:
                    await steps.record(str(at), value)
                except UnstorableStepValueError:
                    continue
                kept[str(at)] = before[at]
        async with open_store() as store:
            again = Steps(store, HookSet(), envelope, "charge")
            await again.load()
            assert {key: shape(await again.recall(key)) for key in kept} == kept
            await store.delete(envelope)

    asyncio.run(before_and_after())


@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"]))
        | st.binary()
        | st.uuids()
        | st.dates()
        | st.datetimes(timezones=st.sampled_from([None, UTC, ZoneInfo("Europe/Berlin")]))
        | st.timedeltas()
        | st.decimals(allow_nan=False)
        | st.sampled_from(Color),
        lambda inner: (
            st.lists(inner)
            | st.lists(inner).map(tuple)
            | st.builds(Point, inner)
            | st.builds(Row, inner)
            | st.builds(Pair, inner)
            | st.builds(Model, value=inner)
            | st.dictionaries(st.integers() | st.text("ab#") | st.tuples(st.integers()), inner)
        ),
        max_leaves=8,
    )
)
def test_what_has_a_form_is_not_refused(value: Any) -> None:
    async def record() -> None:
        await Steps(MemoryCheckpointStore(), HookSet(), "e", "charge").record("key", value)

    asyncio.run(record())
