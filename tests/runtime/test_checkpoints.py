"""Resumable subscribers: each step runs once, and is remembered between attempts."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from tests.support.shop import Heard, OrderPlaced, dead, make_app, settled, subscribed

from matador import (
    CheckpointStore,
    Context,
    DontRetry,
    Envelope,
    Hooks,
    Matador,
    MemoryCheckpointStore,
    NoCheckpointStore,
    Shutdown,
    SqliteCheckpointStore,
    SyncContext,
    Topology,
    WorkQueue,
)
from matador.errors import (
    CheckpointStoreError,
    ConfigurationError,
    DuplicateStepKeyError,
    TimeoutError,
    UnreadableStepValueError,
    UnstorableStepValueError,
)
from matador.runtime import steps as steps_module
from matador.runtime.dead_letters import Selection
from matador.runtime.hooks import HookSet
from matador.runtime.steps import MISSING, Steps
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport

WEEK = 7 * 86400


def resumable(callback: Callable[..., Any]) -> Any:
    return subscribed(callback, idempotent="resumable")


def timed(clock: ManualClock, callback: Any, store: CheckpointStore, **options: Any) -> Matador:
    return make_app(
        MemoryTransport(clock=clock),
        resumable(callback),
        clock=clock,
        checkpoints=store,
        **options,
    )


async def run_through(app: Matador, clock: ManualClock, attempts: int = 4) -> None:
    """Send one event and let it be tried until it is done with."""
    await app.send(OrderPlaced("o-1"))
    for _ in range(attempts):
        await settled(app)
        clock.advance(300)


class Ledger:
    """Steps that count how often they ran."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def step(self, name: str, value: Any = None, *errors: Exception) -> Callable[[], Any]:
        left = list(errors)

        async def run() -> Any:
            self.runs.append(name)
            await asyncio.sleep(0)
            if left:
                raise left.pop(0)
            return value

        return run


# -- io() --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_step_runs_once_and_its_value_comes_back_on_the_next_attempt(
    kind: str, manual_clock: ManualClock, tmp_path: Path
) -> None:
    ledger, heard, values = Ledger(), Heard(), list[Any]()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        values.append(await ctx.io("reserve", ledger.step("reserve", {"id": 7})))
        values.append(await ctx.io("note", lambda: "sync steps too"))
        if ctx.attempt == 1:
            raise ValueError("the second step failed")

    store: CheckpointStore = (
        MemoryCheckpointStore(clock=manual_clock)
        if kind == "memory"
        else SqliteCheckpointStore(tmp_path / "steps.db", clock=manual_clock)
    )
    async with timed(manual_clock, charge, store, hooks=heard) as app:
        await run_through(app, manual_clock)
        assert dead(app) == []
        envelope_id = heard.of("success")[0].envelope.id
        assert await store.load(envelope_id) == {}
    assert ledger.runs == ["reserve"]
    assert values == [{"id": 7}, "sync steps too"] * 2
    told = [name for name in heard.names if name in ("loaded", "hit", "miss", "cleared")]
    assert told == ["miss", "miss", "loaded", "hit", "hit", "cleared"]
    assert [event.step for event in heard.of("miss")] == ["reserve", "note"]
    (loaded,), (cleared,) = heard.of("loaded"), heard.of("cleared")
    assert (loaded.steps, loaded.subscriber, loaded.envelope_id) == (2, "handle", envelope_id)
    assert cleared.reason == "success"


async def test_a_step_that_fails_is_not_remembered(manual_clock: ManualClock) -> None:
    ledger = Ledger()
    flaky = ledger.step("flaky", "at last", ValueError("not yet"))
    values: list[Any] = []

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        values.append(await ctx.io("flaky", flaky))

    async with timed(manual_clock, charge, MemoryCheckpointStore()) as app:
        await run_through(app, manual_clock)
    assert (ledger.runs, values) == (["flaky", "flaky"], ["at last"])


async def test_a_key_used_twice_in_one_run_is_an_error(manual_clock: ManualClock) -> None:
    ledger, heard = Ledger(), Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", ledger.step("first"))
        await ctx.io("charge", ledger.step("second"))

    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert isinstance(heard.of("error")[0].error, DuplicateStepKeyError)
    assert ledger.runs == ["first"]


@pytest.mark.parametrize("key", ["", None, 7])
async def test_a_key_must_be_a_text(key: Any, manual_clock: ManualClock) -> None:
    heard = Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io(key, lambda: 1)

    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert isinstance(heard.of("error")[0].error, ConfigurationError)


async def test_without_a_store_every_attempt_starts_anew_and_the_log_warns(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", ledger.step("charge"))
        if ctx.attempt == 1:
            raise ValueError("once")

    async with timed(manual_clock, charge, NoCheckpointStore()) as app:
        await run_through(app, manual_clock)
    assert ledger.runs == ["charge", "charge"]
    assert "no checkpoint store" in caplog.text


async def test_for_other_subscribers_a_step_simply_runs(manual_clock: ManualClock) -> None:
    ledger, heard = Ledger(), Heard()
    values: list[Any] = []

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        values.append(await ctx.io("charge", ledger.step("charge", object)))
        values.append(await ctx.io("charge", lambda: 2))
        values.extend(await ctx.all([("charge", lambda: 3), ("charge", ledger.step("x", 4))]))
        if ctx.attempt == 1:
            raise ValueError("once")

    store = MemoryCheckpointStore()
    app = make_app(
        MemoryTransport(clock=manual_clock),
        subscribed(charge),
        clock=manual_clock,
        checkpoints=store,
        hooks=heard,
    )
    async with app:
        await run_through(app, manual_clock)
    assert ledger.runs == ["charge", "x"] * 2
    assert values == [object, 2, 3, 4] * 2
    assert len(store) == 0
    assert not {"loaded", "hit", "miss", "cleared"} & set(heard.names)


# -- all() -------------------------------------------------------------------------------------


async def test_all_runs_steps_side_by_side_and_keeps_their_order(manual_clock: ManualClock) -> None:
    together = asyncio.Event()
    values: list[list[Any]] = []

    async def first() -> str:
        await together.wait()
        return "a"

    async def second() -> str:
        together.set()
        return "b"

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        values.append(await ctx.all([("a", first), ("b", second), ("c", lambda: "c")]))

    async with timed(manual_clock, charge, MemoryCheckpointStore()) as app:
        await run_through(app, manual_clock, 1)
    assert values == [["a", "b", "c"]]


async def test_one_failing_step_of_all_does_not_lose_its_siblings(
    manual_clock: ManualClock,
) -> None:
    ledger, heard = Ledger(), Heard()
    bad = ledger.step("bad", "B", ValueError("once"))
    values: list[Any] = []

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        steps = [("a", ledger.step("a", "A")), ("b", bad), ("c", ledger.step("c", "C"))]
        values.extend(await ctx.all(steps))

    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await run_through(app, manual_clock)
    assert ledger.runs == ["a", "bad", "c", "bad"]
    assert values == ["A", "B", "C"]
    assert str(heard.of("error")[0].error) == "once"


async def test_all_refuses_a_key_twice_before_anything_runs(manual_clock: ManualClock) -> None:
    ledger, heard = Ledger(), Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.all([("a", ledger.step("a")), ("a", ledger.step("a"))])

    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert isinstance(heard.of("error")[0].error, DuplicateStepKeyError)
    assert ledger.runs == []


# -- sync callbacks ----------------------------------------------------------------------------


async def test_sync_callbacks_have_io_all_and_send(manual_clock: ManualClock) -> None:
    main = threading.get_ident()
    runs: list[str] = []
    values: list[Any] = []
    side_by_side = threading.Barrier(2, timeout=60)

    def step(name: str, value: Any) -> Callable[[], Any]:
        def run() -> Any:
            assert threading.get_ident() != main, "a slow step must not block the loop"
            runs.append(name)
            return value

        return run

    def meet() -> str:
        side_by_side.wait()
        return "met"

    def charge(envelope: Envelope[OrderPlaced], ctx: SyncContext) -> None:
        if envelope.data.order_id == "sent by the callback":
            return
        values.append(ctx.io("one", step("one", 1)))
        values.append(ctx.all([("x", meet), ("y", meet)]))
        if ctx.attempt == 1:
            raise ValueError("once")
        result = ctx.send(OrderPlaced("sent by the callback"), delay=0)
        values.append(result.sent)

    heard = Heard()
    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await run_through(app, manual_clock)
        assert dead(app) == []
    assert runs == ["one"]
    assert values == [1, ["met", "met"]] * 2 + [1]
    assert {event.envelope.data.order_id for event in heard.of("success")} == {
        "sent by the callback",
        "o-1",
    }


# -- values ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataclassPayment:
    id: str
    amounts: tuple[int, ...]


class StructPayment(msgspec.Struct, frozen=True):
    id: str
    amounts: list[int]


class PydanticPayment(pydantic.BaseModel):
    id: str
    amounts: list[int]


@attrs.frozen
class AttrsPayment:
    id: str
    amounts: list[int]


@dataclass
class Loose:
    """Its annotations say less than its values, or something else."""

    anything: Any
    lines: list  # type: ignore[type-arg]
    price: float


class LooseStruct(msgspec.Struct):
    anything: Any
    price: float


@attrs.define
class LooseAttrs:
    anything: Any
    ids: list[Any]


class PydanticLoose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    anything: Any = None
    other: int = pydantic.Field(default=1, exclude=True)
    _secret: int = 0

    def with_secret(self) -> PydanticLoose:
        self._secret = 7
        return self


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


def shown(value: Any) -> str:
    given = sorted(getattr(value, "__pydantic_fields_set__", ()))
    return f"{type(value)} {value!r} {given} {getattr(value, '__pydantic_private__', None)}"


VALUES: list[Any] = [
    None,
    True,
    0,
    7.5,
    "",
    "é漢😀",
    [1, [2]],
    {"a": {"b": None}},
    DataclassPayment("p-1", (1, 2)),
    StructPayment("p-1", [1, 2]),
    PydanticPayment(id="p-1", amounts=[1, 2]),
    AttrsPayment("p-1", [1, 2]),
    datetime(2026, 11, 18, 3, 24, 0, 7, tzinfo=None),  # noqa: DTZ001 - a naive time
    datetime(2026, 11, 18, 3, 24, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 11, 18, 3, 24, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    date(2026, 11, 18),
    time(3, 24, fold=1),
    timedelta(days=-1, microseconds=1),
    UUID("8a4a1b39-8f5c-4d0e-9b0c-6d1c4f6f9a11"),
    Decimal("1.10"),
    Decimal("-0"),
    b"\x00\xff",
    bytearray(b"ab"),
    -0.0,
    2**70,
    (1, (2, "x")),
    {1, 2},
    frozenset({(1, b"x")}),
    {1: "int", "1": "str", None: "none", (1, 2): "tuple", False: "bool"},
    {"#tuple": [1]},
    {"#": {"#dict": 1}},
    Status.PAID,
    [DataclassPayment("p-1", (1,)), StructPayment("p-2", [2]), PydanticPayment(id="p", amounts=[])],
    {"paid": {"by": AttrsPayment("p-1", [1]), "at": datetime(2026, 1, 1, tzinfo=UTC)}},
    Loose({"at": date(2026, 1, 1)}, [DataclassPayment("p-1", (1,))], 5),
    LooseStruct((1, {2}), 5),
    LooseAttrs(Decimal("1.0"), [UUID(int=1)]),
    (Loose(None, [Loose(b"x", [], 1)], 1.5),),
    PydanticLoose(anything=datetime(2026, 1, 1, tzinfo=UTC)),
    PydanticLoose.model_validate({"anything": b"x", "other": 2, "more": (1, 2)}),
    PydanticLoose(other=1).with_secret(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
async def test_a_value_comes_back_as_what_it_was(value: Any, manual_clock: ManualClock) -> None:
    values: list[Any] = []
    ledger = Ledger()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        values.append(await ctx.io("charge", ledger.step("charge", value)))
        if ctx.attempt == 1:
            raise ValueError("once")

    async with timed(manual_clock, charge, MemoryCheckpointStore()) as app:
        await run_through(app, manual_clock)
        assert dead(app) == []
    assert ledger.runs == ["charge"]
    assert values == [value, value]
    assert [shown(one) for one in values] == [shown(value)] * 2


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


class Flags(Flag):
    READ = 1
    WRITE = 2


class OnlyOnce(msgspec.Struct):
    """Its code raises an error that is not one of encoding."""

    made: ClassVar[int] = 0
    number: int

    def __post_init__(self) -> None:
        OnlyOnce.made += 1
        if OnlyOnce.made > 1:
            raise RuntimeError("a second one")


def with_attribute(value: Any) -> Any:
    object.__setattr__(value, "more", 1)
    return value


def local_class() -> Any:
    @dataclass
    class Hidden:
        id: str

    return Hidden("x")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2} | {object()},
        float("nan"),
        local_class(),
        lambda: 1,
        [local_class()],
        Text("x"),
        Point(1, 2),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "named")),
        with_attribute(DataclassPayment("p-1", (1,))),
        Flags.READ | Flags.WRITE,
        OnlyOnce(1),
    ],
    ids=[
        "object",
        "set",
        "nan",
        "local-class",
        "function",
        "local-class-in-list",
        "str-subclass",
        "named-tuple",
        "named-time-zone",
        "attribute",
        "flags",
        "only-once",
    ],
)
async def test_a_value_that_cannot_be_stored_ends_in_the_dead_letters_at_once(
    value: Any, manual_clock: ManualClock
) -> None:
    ledger, heard = Ledger(), Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", ledger.step("charge", value))

    async with timed(manual_clock, charge, MemoryCheckpointStore(), hooks=heard) as app:
        await run_through(app, manual_clock)
        (letter,) = dead(app)
    assert ledger.runs == ["charge"], "the step had its effect: it must not run again"
    assert isinstance(heard.of("error")[0].error, UnstorableStepValueError)
    assert "'charge'" in str(letter.reason)


Alias = DataclassPayment


class Outer:
    @dataclass(frozen=True)
    class Payment:
        id: str


async def recalled(stored: bytes, ledger: Ledger, store: CheckpointStore) -> Any:
    """What a subscriber is given for a step of which ``stored`` is in the store."""
    await store.save("e-1", "charge", stored)
    steps = Steps(store, HookSet(), "e-1", "charge-card")
    await steps.load()
    value = await steps.recall("charge")
    return await ledger.step("charge")() if value is MISSING else value


@pytest.mark.parametrize(
    "name",
    [
        "matador_hostile:Payload",  # not loaded: it must not be imported
        "matador_lazy:Payload",  # loaded, but it would import when it is asked
        "matador_lazy.sub:Payload",
        "os:system",
        "subprocess:Popen",
        "builtins:dict",
        f"{__name__}:Alias",  # not what the class is called
        f"{__name__}:Ledger",  # not data
        f"{__name__}:Outer.nothing.more",
        f"{__name__}:DataclassPayment.__init__",
        f"{__name__}:__builtins__.exec",
        __name__,
        "",
        ":",
        "::",
        ".:.",
    ],
)
async def test_no_stored_value_makes_its_reader_import_or_call_anything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matador_hostile.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Payload:\n    id: str\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    lazy = ModuleType("matador_lazy")
    lazy.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # PEP 562
    monkeypatch.setitem(sys.modules, "matador_lazy", lazy)
    before = set(sys.modules)
    ledger = Ledger()
    stored = msgspec.json.encode({"value": {"id": "x", "amounts": []}, "type": name})
    with pytest.raises(
        UnreadableStepValueError, match=r"result of step 'charge': class .* is not loaded"
    ):
        await recalled(stored, ledger, MemoryCheckpointStore())
    assert set(sys.modules) == before
    assert ledger.runs == []


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xff",
        b"{}",
        b'{"value": }',
        b"[" * 100_000,
        b'{"value": ' + b"[" * 100_000,
        b'{"value": {"id": 7}, "type": "%s:DataclassPayment"}' % __name__.encode(),
        b'{"value": {"id": 7}, "type": "%s:PydanticPayment"}' % __name__.encode(),
        b'{"value": 1, "type": 7}',
        b'{"value": {"#unknown": 1}, "type": "#"}',
        b'{"value": {"#datetime": ["soon", null, 0]}, "type": "#"}',
        b'{"value": {"#enum": ["%s:DataclassPayment", "id"]}, "type": "#"}' % __name__.encode(),
        b'{"value": {"#fields": ["%s:DataclassPayment", {"id": 1}]}, "type": "#"}'
        % __name__.encode(),
    ],
)
async def test_a_damaged_value_is_a_named_error(stored: bytes) -> None:
    ledger = Ledger()
    with pytest.raises(
        UnreadableStepValueError, match="cannot read the stored result of step 'charge'"
    ):
        await recalled(stored, ledger, MemoryCheckpointStore())
    assert ledger.runs == [], "it was done once; a damaged note of it is no reason to do it again"


async def test_a_class_inside_of_a_value_is_found_by_its_name_only(tmp_path: Path) -> None:
    for mark in ("record", "fields", "enum"):
        for name in ("matador_hostile:Payload", "os:system", f"{__name__}:Alias"):
            stored = msgspec.json.encode({"value": [{f"#{mark}": [name, {}]}], "type": "#"})
            with pytest.raises(UnreadableStepValueError, match=r"class .* is not loaded"):
                await recalled(stored, Ledger(), MemoryCheckpointStore())


async def test_what_earlier_versions_stored_is_read() -> None:
    for value, stored in (
        ({"id": 7}, b'{"value":{"id":7}}'),
        (None, b'{"value":null}'),
        (
            DataclassPayment("p", (1,)),
            b'{"value":{"id":"p","amounts":[1]},"type":"%s:DataclassPayment"}' % __name__.encode(),
        ),
        (
            Outer.Payment("p"),
            b'{"value":{"id":"p"},"type":"%s:Outer.Payment"}' % __name__.encode(),
        ),
    ):
        assert await recalled(stored, Ledger(), MemoryCheckpointStore()) == value


# -- dead letters ------------------------------------------------------------------------------


async def test_a_dead_letter_keeps_its_steps_for_the_redrive(manual_clock: ManualClock) -> None:
    ledger, heard = Ledger(), Heard()
    broken = True

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", ledger.step("charge"))
        if broken:
            raise DontRetry("the printer is on fire")
        await ctx.io("print", ledger.step("print"))

    store = MemoryCheckpointStore(clock=manual_clock)
    async with timed(manual_clock, charge, store, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert len(store) == 1
        manual_clock.advance(WEEK - 1)
        assert len(store) == 1
        broken = False
        moved = await app.dead_letters.redrive(await app.dead_letters.choose(Selection()))
        assert moved.done == 1
        await settled(app)
        assert dead(app) == []
        assert len(store) == 0
    assert ledger.runs == ["charge", "print"]
    assert [event.reason for event in heard.of("cleared")] == ["success"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("how", ["failed", "refused"])
async def test_the_steps_of_a_dead_letter_are_forgotten_after_a_week(
    kind: str, how: str, manual_clock: ManualClock, tmp_path: Path
) -> None:
    store: CheckpointStore = (
        MemoryCheckpointStore(clock=manual_clock)
        if kind == "memory"
        else SqliteCheckpointStore(tmp_path / "steps.db", clock=manual_clock)
    )
    heard = Heard()
    entered = asyncio.Event()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: 1)
        if how == "failed":
            raise DontRetry("no")
        entered.set()
        await asyncio.Event().wait()

    class Poison(Hooks):
        def get_max_deliveries(self, envelope: Any) -> int:
            return 2

    quick = Shutdown(0, grace=1)
    app = timed(manual_clock, charge, store, hooks=[heard, Poison()], shutdown=quick)
    async with app:
        await app.send(OrderPlaced("o-1"))
        if how == "failed":
            await settled(app)
        else:
            await entered.wait()
            await app.transport.disconnect()  # as if the worker had died: nothing is settled
    async with app:
        await wait_for(lambda: dead(app))
        await settled(app)
        (error,) = heard.of("error")
        envelope_id = error.envelope.id
        assert list(await store.load(envelope_id)) == ["charge"]
        manual_clock.advance(WEEK + 1)
        assert await store.load(envelope_id) == {}


async def test_a_discarded_message_has_its_steps_cleared(manual_clock: ManualClock) -> None:
    heard = Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: 1)
        raise ValueError("never mind")

    store = MemoryCheckpointStore()
    async with timed(manual_clock, charge, store, hooks=heard, delivery="at-most-once") as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert [event.reason for event in heard.of("cleared")] == ["discarded"]
    assert len(store) == 0


# -- stores that fail --------------------------------------------------------------------------


class FailingStore(MemoryCheckpointStore):
    """Fails in the method whose name it is given."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method: str | None = method
        self.only: str | None = None
        self.failures = 0

    def _check(self, method: str, step: str | None = None) -> None:
        if self.method == method and self.only in (None, step):
            self.failures += 1
            raise OSError(f"{method} failed")

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        self._check("load")
        return await super().load(envelope_id)

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        self._check("save", step)
        await super().save(envelope_id, step, value)

    async def keep(self, envelope_id: str, ttl: float) -> None:
        self._check("keep")
        await super().keep(envelope_id, ttl)

    async def delete(self, envelope_id: str) -> None:
        self._check("delete")
        await super().delete(envelope_id)


async def test_a_message_goes_back_uncounted_if_its_steps_cannot_be_loaded_for_long(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps_module, "_PATIENCE", 0.0)
    heard, contexts = Heard(), list[Any]()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        contexts.append(ctx)

    store = FailingStore("load")
    async with timed(manual_clock, charge, store, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: store.failures > 10)  # more often than a message may be delivered
        assert contexts == []
        store.method = None
        await settled(app)
        assert dead(app) == []
    assert [(one.attempt, one.redelivered) for one in contexts] == [(1, False)]
    assert (len(heard.of("success")), heard.of("error")) == (1, [])
    assert "goes back to its queue, uncounted" in caplog.text


def with_timeout(limit: float) -> Topology:
    return Topology("shop", queues=[WorkQueue("events", consumer_timeout=limit)])


async def test_a_timeout_stands_still_while_a_step_waits_for_its_store(
    manual_clock: ManualClock,
) -> None:
    heard, ledger, attempts = Heard(), Ledger(), list[int]()
    go_on = asyncio.Event()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        attempts.append(ctx.attempt)
        both = [(key, ledger.step(key)) for key in ("slow", "quick")]
        await ctx.all(both)
        if ctx.attempt == 1:
            await go_on.wait()  # what is left of the timeout ends here

    store = FailingStore("save")
    store.only = "slow"  # the other one is saved meanwhile
    app = timed(manual_clock, charge, store, hooks=heard, topology=with_timeout(0.1))
    async with app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: store.failures)
        manual_clock.advance(1)
        failures = store.failures
        await wait_for(lambda: store.failures > failures)
        assert attempts == [1]
        assert heard.of("error") == []
        store.method = None
        await wait_for(lambda: manual_clock.advance(0.05) or heard.of("error"))
        await settled(app)
        manual_clock.advance(1)
        await wait_for(lambda: heard.of("success"))
        assert dead(app) == []
    assert isinstance(heard.of("error")[0].error, TimeoutError)
    assert attempts == [1, 2]
    assert sorted(ledger.runs) == ["quick", "slow"]
    assert len(heard.of("success")) == 1


async def test_a_step_that_could_not_be_saved_before_the_end_is_logged(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: 1)

    store = FailingStore("save")
    async with timed(manual_clock, charge, store) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: store.failures)
        await app.shutdown(timeout=0)
    assert "the step 'charge' has run, but was canceled before its result was saved" in caplog.text


class RefusingStore(MemoryCheckpointStore):
    """Refuses every value for good."""

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        raise ValueError("longer than a row may be")


async def test_a_store_that_refuses_a_value_is_not_waited_for(manual_clock: ManualClock) -> None:
    heard = Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: 1)

    async with timed(manual_clock, charge, RefusingStore(), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (error,) = heard.of("error")
    assert isinstance(error.error, CheckpointStoreError)
    assert "could not save the step 'charge': ValueError: longer" in str(error.error)


async def test_a_timeout_after_a_refused_value_is_one_of_the_handler(
    manual_clock: ManualClock,
) -> None:
    heard = Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        with suppress(CheckpointStoreError):
            await ctx.io("charge", lambda: 1)
        await asyncio.sleep(3600)

    app = timed(manual_clock, charge, RefusingStore(), hooks=heard, topology=with_timeout(0.01))
    async with app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: manual_clock.advance(0.01) or heard.of("error"))
    assert isinstance(heard.of("error")[0].error, TimeoutError)


@pytest.mark.parametrize("method", ["delete", "keep"])
async def test_a_store_that_cannot_tidy_up_does_no_harm(
    method: str, manual_clock: ManualClock
) -> None:
    heard = Heard()

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: 1)
        if method == "keep":
            raise DontRetry("no")

    async with timed(manual_clock, charge, FailingStore(method), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert len(heard.of("success") + heard.of("error")) == 1
    assert heard.of("cleared") == []


# -- the stores themselves ---------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, manual_clock: ManualClock
) -> CheckpointStore:
    if request.param == "memory":
        return MemoryCheckpointStore(clock=manual_clock)
    return SqliteCheckpointStore(tmp_path / "steps.db", clock=manual_clock)


async def test_a_store_keeps_replaces_and_forgets(
    store: CheckpointStore, manual_clock: ManualClock
) -> None:
    await store.open()
    assert await store.load("m-1") == {}
    await store.save("m-1", "a", b"1")
    await store.save("m-1", "b", b"2")
    await store.save("m-1", "a", b"3")
    await store.save("m-2", "a", b"other")
    assert await store.load("m-1") == {"a": b"3", "b": b"2"}
    await store.delete("m-1")
    await store.delete("m-1")
    assert await store.load("m-1") == {}
    assert await store.load("m-2") == {"a": b"other"}
    await store.keep("m-2", 10)
    await store.keep("nobody", 10)
    manual_clock.advance(9)
    assert await store.load("m-2") == {"a": b"other"}
    manual_clock.advance(1)
    assert await store.load("m-2") == {}
    await store.close()


async def test_a_step_saved_again_is_kept_without_limit(
    store: CheckpointStore, manual_clock: ManualClock
) -> None:
    await store.open()
    await store.save("m-1", "a", b"1")
    await store.keep("m-1", 10)
    await store.save("m-1", "b", b"2")
    manual_clock.advance(11)
    assert await store.load("m-1") == {"a": b"1", "b": b"2"}
    await store.close()


async def test_the_memory_store_can_be_looked_into() -> None:
    store = MemoryCheckpointStore()
    await store.save("m-1", "a", b"1")
    await store.save("m-2", "a", b"1")
    assert (len(store), list(store)) == (2, ["m-1", "m-2"])
    store.clear()
    assert len(store) == 0


async def test_no_store_keeps_nothing() -> None:
    store = NoCheckpointStore()
    await store.save("m-1", "a", b"1")
    assert await store.load("m-1") == {}
    assert store.persistent is False


async def test_sqlite_steps_outlive_the_process_that_saved_them(tmp_path: Path) -> None:
    first = SqliteCheckpointStore(tmp_path / "steps.db")
    await first.open()
    await first.save("m-1", "a", b"1")
    second = SqliteCheckpointStore(tmp_path / "steps.db")
    await second.open()
    assert await second.load("m-1") == {"a": b"1"}
    await first.close()
    await first.close()
    await second.close()


async def test_a_sqlite_store_that_is_not_open_or_cannot_be_says_so(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    with pytest.raises(CheckpointStoreError, match="is not open"):
        await store.load("m-1")
    with pytest.raises(CheckpointStoreError, match="unable to open"):
        await SqliteCheckpointStore(tmp_path / "no" / "steps.db").open()
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"this is not a database" * 100)
    with pytest.raises(CheckpointStoreError, match="not a database"):
        await SqliteCheckpointStore(rubbish).open()
