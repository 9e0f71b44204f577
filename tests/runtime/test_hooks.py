"""Hooks: told in order, composed, never in the way of a delivery, and free when unused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    Handler,
    Heard,
    OrderPlaced,
    dead,
    failing,
    make_app,
    settled,
    subscribed,
)

from matador import Context, DontRetry, Envelope, Hooks
from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    InvalidEventError,
    SendFailedError,
    ShuttingDownError,
)
from matador.runtime.facts import Attempt, Kind, Received, Sent
from matador.runtime.hooks import HookSet, Sending, hook_objects
from matador.testing import make_delivery, wait_for

HOOKS = sorted(name for name in vars(Hooks) if not name.startswith("_"))


# -- what is told ------------------------------------------------------------------------------


async def test_the_life_of_a_message_is_told_in_order() -> None:
    heard = Heard()
    async with make_app(None, Handler(), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    names = [name for name in heard.names if name != "connection"]
    assert names == ["start", "enqueue_success", "before", "success", "stop"]
    (before,) = heard.of("before")
    assert (before.envelope.data, before.subscriber.name) == (OrderPlaced("o-1"), "handle")
    assert [event.state.status for event in heard.of("connection")] == ["connected", "disconnected"]


async def test_several_hook_objects_are_called_in_the_order_given() -> None:
    order: list[str] = []

    class Named(Hooks):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_worker_before_process(self, event: Any) -> None:
            order.append(f"{self.name} before")

        async def on_worker_wrap(self, event: Any, proceed: Any) -> None:
            order.append(f"{self.name} in")
            await proceed()
            order.append(f"{self.name} out")

        def on_worker_success(self, event: Any) -> None:
            order.append(f"{self.name} success")

    async with make_app(None, Handler(), hooks=[Named("a"), Named("b")]) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert order == [
        "a in",
        "b in",
        "a before",
        "b before",
        "b out",
        "a out",
        "a success",
        "b success",
    ]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_hook_that_raises_is_logged_and_changes_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("the hook is broken")

    async def broken_async(*arguments: Any) -> None:
        raise RuntimeError("the hook is broken")

    class Broken(Hooks):
        pass

    for name in HOOKS:
        setattr(Broken, name, broken if kind == "sync" or name in AROUND else broken_async)
    heard, handler = Heard(), failing(None, ValueError("x"))
    async with make_app(None, handler, hooks=[Broken(), heard]) as app:
        assert (await app.send(OrderPlaced("o-1"))).ok
        await settled(app)
        assert (await app.send(OrderPlaced("o-2"))).ok
        await settled(app)
        assert dead(app) == []
    assert handler.runs == 2
    assert (len(heard.of("success")), len(heard.of("error"))) == (1, 1)
    assert "the hook on_worker_success raised an error, which was ignored" in caplog.text


async def test_a_hook_that_awaits_something_cancelled_does_not_stop_the_worker() -> None:
    class Cancelled(Hooks):
        async def on_worker_success(self, event: Any) -> None:
            raise asyncio.CancelledError

    heard, handler = Heard(), Handler()
    async with make_app(None, handler, hooks=[Cancelled(), heard]) as app:
        for number in range(3):
            await app.send(OrderPlaced(f"o-{number}"))
            await settled(app)
    assert len(heard.of("success")) == 3


# -- unused hooks ------------------------------------------------------------------------------


AROUND = {"on_worker_enter", "on_worker_exit", "on_send_enter", "on_send_exit"}
TELLING = {
    "on_sent": "sent",
    "on_enqueue_success": "sent",
    "on_attempted": "attempted",
    "on_worker_success": "attempted",
    "on_worker_error": "attempted",
    "on_decode_error": "attempted",
}
COMBINED = {
    **TELLING,
    **{name: "around" for name in AROUND if "worker" in name},
    **{name: "send_around" for name in AROUND if "send" in name},
    "on_worker_wrap": "wraps",
}


def used(hooks: HookSet) -> set[str]:
    return {name for name in {COMBINED.get(hook, hook) for hook in HOOKS} if getattr(hooks, name)}


def test_what_nobody_overrides_is_not_there_at_all() -> None:
    assert used(HookSet([Hooks(), Hooks()])) == set()


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_can_be_overridden_alone(name: str) -> None:
    one = type("One", (Hooks,), {name: lambda self, *arguments: None})  # pyright: ignore[reportUnknownLambdaType]
    assert used(HookSet([one()])) == {COMBINED.get(name, name)}


# -- hooks= --------------------------------------------------------------------------------------


def test_hooks_are_one_object_or_several_or_none() -> None:
    one, other = Hooks(), Heard()
    assert hook_objects(None, "Here") == ()
    assert hook_objects(one, "Here") == (one,)
    assert hook_objects([one, other], "Here") == (one, other)
    assert hook_objects((other,), "Here") == (other,)


def test_a_class_with_hooks_in_it_may_have_other_methods() -> None:
    class Mine(Hooks):
        once = get = only = load = None

        def _on_worker_succes(self) -> None: ...

    assert hook_objects(Mine(), "Here")


class Misspelt(Hooks):
    def on_worker_succes(self, event: Any) -> None: ...


class Unknown(Hooks):
    def get_colour(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (object(), "hooks= takes objects of subclasses of Hooks.*got <object"),
        (print, "got <built-in function print>"),
        (Heard, r"got the class Heard; write hooks=\[Heard\(\)\]"),
        ([Heard(), None], "got None"),
        ({"on_start": print}, "got {'on_start'"),
        (Misspelt(), "Misspelt.on_worker_succes is not a hook.*on_worker_success.*test_hooks.py"),
        ([Heard(), Unknown()], "Unknown.get_colour is not a hook"),
    ],
    ids=["object", "function", "class", "none-in-a-list", "mapping", "misspelt", "unknown"],
)
def test_what_is_no_hook_is_refused_at_once(given: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)Matador: .*{text}"):
        make_app(None, Handler(), hooks=given)
    app = make_app(None, Handler())
    with pytest.raises(ConfigurationError, match="(?s)" + text):
        app.add_hooks(*cast("list[Any]", given) if isinstance(given, list) else [given])


async def test_hooks_can_be_added_until_it_is_started() -> None:
    first, second = Heard(), Heard()
    app = make_app(None, Handler(), hooks=first)
    app.add_hooks(second)
    assert app.hooks == (first, second)
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        with pytest.raises(ShuttingDownError, match="before it is started"):
            app.add_hooks(Heard())
    assert second.names == first.names
    assert len(second.of("success")) == 1


# -- batches of facts ----------------------------------------------------------------------------


def make_sent(number: int) -> Sent:
    return Sent(
        Kind("event", "order.placed", "handle", "shop.events", "memory"), f"m-{number}", 0.0
    )


def make_attempt(number: int, **options: Any) -> Attempt:
    message = Received(
        "event", f"m-{number}", "order.placed", "handle", "memory", make_delivery(b"{}"), 1, 0.0
    )
    return Attempt(message, options.pop("outcome", "success"), 0.0, **options)


class Batches(Hooks):
    """Remembers each call: the hook, and the ids of its facts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.calls.append(("sent", [one.id for one in batch]))

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.calls.append(("attempted", [one.id for one in batch]))

    def on_enqueue_success(self, event: Sent) -> None:
        self.calls.append(("enqueue_success", [event.id]))

    def on_worker_success(self, event: Attempt) -> None:
        self.calls.append(("success", [event.id]))

    def on_worker_error(self, event: Attempt) -> None:
        self.calls.append(("error", [event.id]))

    def on_decode_error(self, event: Attempt) -> None:
        self.calls.append(("decode_error", [event.id]))


def test_a_batch_is_told_at_once_and_then_one_by_one() -> None:
    hooks = Batches()
    told = HookSet([hooks])
    assert told.sent is not None
    assert told.sent([make_sent(1), make_sent(2)]) is None, "there is nothing to wait for"
    assert hooks.calls == [
        ("sent", ["m-1", "m-2"]),
        ("enqueue_success", ["m-1"]),
        ("enqueue_success", ["m-2"]),
    ]


def test_each_kind_of_attempt_has_its_own_hook() -> None:
    hooks = Batches()
    told = HookSet([hooks])
    assert told.attempted is not None
    error = ValueError("x")
    batch = [
        make_attempt(1),
        make_attempt(2, outcome="retry", error=error),
        make_attempt(3, outcome="dead-letter", error=error, ran=False),
        make_attempt(4, outcome="dead-letter", error=error, ran=False, malformed=True),
        make_attempt(5),
    ]
    assert told.attempted(batch) is None
    assert hooks.calls == [
        ("attempted", ["m-1", "m-2", "m-3", "m-4", "m-5"]),
        ("success", ["m-1"]),
        ("success", ["m-5"]),
        ("error", ["m-2"]),
        ("error", ["m-3"]),
        ("decode_error", ["m-4"]),
    ]


async def test_async_hooks_of_a_batch_run_side_by_side_and_are_waited_for() -> None:
    begun, ended = list[str](), list[str]()
    all_begun = asyncio.Event()

    class Slow(Hooks):
        async def on_sent(self, batch: Sequence[Sent]) -> None:
            await self._meet("batch")

        async def on_enqueue_success(self, event: Sent) -> None:
            await self._meet(event.id)

        async def _meet(self, who: str) -> None:
            begun.append(who)
            if len(begun) == 3:
                all_begun.set()
            await all_begun.wait()
            ended.append(who)

    told = HookSet([Slow()])
    assert told.sent is not None
    waiting = told.sent([make_sent(1), make_sent(2)])
    assert waiting is not None
    await asyncio.wait_for(waiting, 30)
    assert sorted(ended) == ["batch", "m-1", "m-2"]


def raising(error: BaseException, *, is_async: bool) -> Callable[..., Any]:
    def fail(self: object, *arguments: object) -> None:
        raise error

    async def fail_later(self: object, *arguments: object) -> None:
        await asyncio.sleep(0)
        raise error

    return fail_later if is_async else fail


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("name", "tell"), TELLING.items())
async def test_a_hook_that_fails_keeps_no_other_from_being_told(
    name: str, tell: str, is_async: bool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken = type("Broken", (Hooks,), {name: raising(error, is_async=is_async)})
    heard = Batches()
    told: Any = getattr(HookSet([broken(), heard]), tell)
    undecodable = {"error": error, "malformed": name == "on_decode_error"}
    options = {} if name in ("on_attempted", "on_worker_success") else undecodable
    facts = [make_sent(n) if tell == "sent" else make_attempt(n, **options) for n in (1, 2)]
    waiting = told(facts)
    if waiting is not None:
        await waiting
    assert {call for call, _ in heard.calls} >= {tell}
    assert {id for _, ids in heard.calls for id in ids} == {"m-1", "m-2"}
    assert f"the hook {name} raised an error, which was ignored" in caplog.text


async def test_waiting_for_hooks_can_be_cancelled() -> None:
    class Stuck(Hooks):
        async def on_sent(self, batch: Sequence[Sent]) -> None:
            await asyncio.Event().wait()

    told = HookSet([Stuck()])
    assert told.sent is not None
    waiting = told.sent([make_sent(1)])
    assert waiting is not None
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.01)


@pytest.mark.parametrize("name", ["on_worker_success", "on_attempted", "on_worker_enter"])
async def test_a_sync_hook_that_looks_at_something_cancelled_does_not_stop_the_worker(
    name: str,
) -> None:
    broken = type("Broken", (Hooks,), {name: raising(asyncio.CancelledError(), is_async=False)})
    heard, handler = Heard(), Handler()
    async with make_app(None, handler, hooks=[broken(), heard]) as app:
        for number in range(3):
            await app.send(OrderPlaced(f"o-{number}"))
            await settled(app)
    assert len(heard.of("success")) == 3


async def test_many_messages_are_told_in_few_batches() -> None:
    hooks = Batches()
    async with make_app(None, subscribed(Handler()), hooks=hooks) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(50))
        await settled(app)
    for name in ("sent", "attempted"):
        batches = [ids for call, ids in hooks.calls if call == name]
        assert sum(map(len, batches)) == 50
        assert len(batches) < 25


# -- on_worker_wrap: the callback runs exactly once, whatever the hook does --------------------

Proceed = Callable[[], Awaitable[None]]


class Before(Hooks):
    async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
        raise RuntimeError("before")


class After(Hooks):
    async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
        await proceed()
        raise RuntimeError("after")


class Never(Hooks):
    async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
        pass


class NeverSync(Hooks):
    def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
        pass


class Twice(Hooks):
    async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
        await proceed()
        await proceed()


class Passing(Hooks):
    def on_worker_wrap(self, event: Any, proceed: Proceed) -> Awaitable[None]:
        return proceed()


WRAPS = [Before, After, Never, NeverSync, Twice, Passing]


@pytest.mark.parametrize("wrap", WRAPS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
async def test_whatever_a_wrap_does_the_callback_runs_once(wrap: type[Hooks], fails: bool) -> None:
    handler, heard = failing(ValueError("x") if fails else None), Heard()
    async with make_app(None, handler, hooks=[Passing(), wrap(), Passing(), heard]) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert handler.runs == 1
    assert len(heard.of("before")) == 1
    assert (len(heard.of("success")), len(heard.of("error"))) == (1 - fails, fails)


@pytest.mark.parametrize("outer", WRAPS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("inner", WRAPS, ids=lambda wrap: wrap.__name__)
async def test_nor_do_two_of_them_together(outer: type[Hooks], inner: type[Hooks]) -> None:
    handler = Handler()
    async with make_app(None, handler, hooks=[outer(), inner()]) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert dead(app) == []
    assert handler.runs == 1


async def test_a_wrap_that_leaves_the_others_out_is_named_and_they_wrap_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler, wrapped = Handler(), list[str]()

    class Inner(Hooks):
        async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
            wrapped.append("before")
            await proceed()
            wrapped.append("after")

    async with make_app(None, handler, hooks=[Never(), Inner()]) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert wrapped == ["before", "after"]
    assert len(handler.envelopes) == 1
    assert caplog.text.count("on_worker_wrap did not call proceed()") == 1


async def test_a_wrap_that_cancels_nothing_but_says_so_is_a_hook_that_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Handler()

    class Odd(Hooks):
        async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
            raise asyncio.CancelledError

    async with make_app(None, handler, hooks=Odd()) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert len(handler.envelopes) == 1
    assert "the hook on_worker_wrap raised an error, which was ignored" in caplog.text


async def test_a_wrap_sets_the_context_the_callback_runs_in() -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[str] = []

    class Tracing(Hooks):
        async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
            trace.set(event.envelope.data.order_id)
            await proceed()

    async def look(envelope: Envelope[Any], ctx: Context) -> None:
        seen.append(trace.get())

    async with make_app(None, look, hooks=Tracing()) as app:
        await app.send_many([OrderPlaced("o-1"), OrderPlaced("o-2")])
        await settled(app)
    assert sorted(seen) == ["o-1", "o-2"]


async def test_a_wrap_cannot_swallow_a_shutdown() -> None:
    class Swallow(Hooks):
        async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
            try:
                await proceed()
            except BaseException:
                return

    started = asyncio.Event()

    async def endless(envelope: Envelope[Any], ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    heard = Heard()
    app = make_app(None, endless, hooks=[Swallow(), heard])
    await app.start()
    await app.send(OrderPlaced("o-1"))
    await started.wait()
    await app.shutdown(0)
    assert (heard.of("success"), heard.of("error")) == ([], []), "given back, neither nor"


async def test_a_wrap_that_cancels_the_callback_has_made_it_fail() -> None:
    class Impatient(Hooks):
        async def on_worker_wrap(self, event: Any, proceed: Proceed) -> None:
            await asyncio.wait_for(proceed(), 0.01)

    runs = 0

    async def endless(envelope: Envelope[Any], ctx: Context) -> None:
        nonlocal runs
        runs += 1
        await asyncio.Event().wait()

    heard = Heard()
    async with make_app(None, endless, hooks=[Impatient(), heard]) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: heard.of("error"))
        await settled(app)
    assert runs == 1, "not given back at once, to run in a circle"
    assert "cancelled" in str(heard.of("error")[0].error)


# -- slow hooks --------------------------------------------------------------------------------


async def test_a_hook_that_waits_holds_up_a_batch_once_not_each_message() -> None:
    together = 0
    most = 0

    class Slow(Hooks):
        async def on_worker_success(self, event: Any) -> None:
            nonlocal together, most
            together += 1
            most = max(most, together)
            await asyncio.sleep(0)
            together -= 1

    async with make_app(None, subscribed(Handler()), hooks=Slow()) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(50))
        await settled(app)
        await wait_for(lambda: app.state.is_idle)
    assert most > 1


@pytest.mark.parametrize("kind", ["plain", "async", "plain that returns an awaitable"])
@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_told_of_a_stored_message_may_wait_or_not(
    kind: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def tell(event: Any) -> None:
        told.append(f"{event.queue} {event.envelope.data.order_id}")
        if fails:
            raise ValueError("not listening")

    async def wait(event: Any) -> None:
        await asyncio.sleep(0)
        tell(event)

    def wait_later(event: Any) -> Any:
        return wait(event)

    class Told(Hooks):
        """Told of nothing else."""

    hook = {"plain": tell, "async": wait}.get(kind, wait_later)
    setattr(Told, "on_enqueue_success", staticmethod(hook))  # noqa: B010 - one of three
    async with make_app(None, Handler(), hooks=Told()) as app:
        for result in (
            await app.send(OrderPlaced("o-1")),
            *await app.send_many([OrderPlaced("o-2")]),
        ):
            assert (result.sent, result.errors) == (1, ())
        await wait_for(lambda: len(told) == 2)
        await settled(app)
    assert [one.split()[1] for one in told] == ["o-1", "o-2"]
    assert ("on_enqueue_success raised" in caplog.text) is fails


# -- questions: whoever answers first ----------------------------------------------------------


class Silent(Hooks):
    def get_attempts(self, envelope: Any) -> None:
        return None

    def load_universal_metadata(self) -> dict[str, Any]:
        return {"a": 1, "b": 1}


class Raising(Hooks):
    async def get_attempts(self, envelope: Any) -> int:
        raise ValueError("no idea")

    async def load_universal_metadata(self) -> dict[str, Any]:
        raise ValueError("no idea")


class Answering(Hooks):
    def __init__(self, number: int) -> None:
        self._number = number

    async def get_attempts(self, envelope: Any) -> int:
        return self._number

    def load_universal_metadata(self) -> dict[str, Any]:
        return {"b": self._number, "c": self._number}


async def test_a_question_goes_on_to_the_next_until_somebody_answers() -> None:
    hooks = HookSet([Silent(), Raising(), Answering(7), Answering(8)])
    assert hooks.get_attempts is not None
    assert await hooks.get_attempts(None) == 7
    silent = HookSet([Raising(), Silent()])
    assert silent.get_attempts is not None
    assert await silent.get_attempts(None) is None


async def test_metadata_of_all_is_merged_and_the_later_wins() -> None:
    hooks = HookSet([Silent(), Answering(2), Raising(), Answering(3)])
    assert hooks.load_universal_metadata is not None
    assert await hooks.load_universal_metadata() == {"a": 1, "b": 3, "c": 3}


# -- on_worker_enter, on_send_enter: around callbacks and sends, without waiting ----------------


class Around(Hooks):
    """Says when it is entered and left, and sets a context variable inside."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def on_worker_enter(self, event: Received) -> str:
        INSIDE.set((*INSIDE.get(), self._name))
        self._log.append(f"{self._name} in")
        return event.envelope.id

    def on_worker_exit(self, event: Received, state: Any, error: BaseException | None) -> None:
        assert state == event.envelope.id
        self._log.append(f"{self._name} out {type(error).__name__ if error else 'fine'}")

    def on_send_enter(self, event: Sending) -> int:
        event.metadata[self._name] = event.count
        self._log.append(f"{self._name} sends")
        return event.count

    def on_send_exit(self, event: Sending, state: int, error: BaseException | None) -> None:
        self._log.append(f"{self._name} sent {state} {type(error).__name__ if error else 'fine'}")


INSIDE: ContextVar[tuple[str, ...]] = ContextVar("INSIDE", default=())


async def _waits(*_: Any) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("options", [{}, {"idempotent": "resumable"}], ids=["bare", "whole"])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_enter_and_exit_surround_each_callback_in_its_own_context(
    options: dict[str, Any], waits: bool, fails: bool
) -> None:
    log: list[str] = []
    seen: list[tuple[str, ...]] = []
    metadata: list[dict[str, Any]] = []

    async def callback(envelope: Envelope[Any]) -> None:
        if waits:
            await asyncio.sleep(0)
        seen.append(INSIDE.get())
        metadata.append(envelope.docket.metadata)
        if fails:
            raise DontRetry("no")

    hooks = [Around("a", log), Around("b", log)]
    one = subscribed(callback, **options)
    async with make_app(None, one, hooks=hooks) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        await app.send_many([OrderPlaced("o-2")])
        await settled(app)
    assert seen == [("a", "b")] * 2  # and not those of the message before
    assert metadata == [{"a": 1, "b": 1}] * 2
    how = "DontRetry" if fails else "fine"
    sends = ["a sends", "b sends", "b sent 1 fine", "a sent 1 fine"]
    runs = ["a in", "b in", f"b out {how}", f"a out {how}"]
    assert sorted(log) == sorted((sends + runs) * 2)
    assert [one for one in log if "in" in one.split() or "out" in one] == runs * 2


async def test_a_sync_callback_is_surrounded_too() -> None:
    log: list[str] = []
    seen: list[tuple[str, ...]] = []

    def callback(envelope: Envelope[Any]) -> None:
        seen.append(INSIDE.get())

    async with make_app(None, subscribed(callback), hooks=Around("a", log)) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert seen == [("a",)]
    assert log[-2:] == ["a in", "a out fine"] or "a out fine" in log


async def test_a_send_that_raises_is_left_with_its_error() -> None:
    log: list[str] = []
    async with make_app(None, _waits, hooks=Around("a", log)) as app:
        with pytest.raises(InvalidEventError):
            await app.send(OrderPlaced, {"order_id": 5})
    assert log == ["a sends", "a sent 1 InvalidEventError"]


async def test_what_a_hook_adds_to_a_send_travels_with_it_unless_the_sender_sets_it() -> None:
    handler = Handler()
    async with make_app(None, handler, hooks=Around("a", [])) as app:
        await app.send(OrderPlaced("o-1"), metadata={"mine": "kept"})
        await app.send(OrderPlaced("o-2"), metadata={"a": "mine"})
        await settled(app)
    metadata = [one.docket.metadata for one in handler.envelopes]
    assert metadata == [{"a": 1, "mine": "kept"}, {"a": "mine"}]


async def test_a_send_that_is_not_stored_is_left_with_its_error() -> None:
    transport, log = FaultyTransport(), list[str]()
    async with make_app(transport, Handler(), hooks=Around("a", log), consume_from=()) as app:
        transport.send_errors.append(ConnectionFailedError("down"))
        with pytest.raises(SendFailedError) as raised:
            await app.send(OrderPlaced("o-1"))
    assert log == ["a sends", f"a sent 1 {type(raised.value).__name__}"]


@pytest.mark.parametrize("name", ["on_send_enter", "on_send_exit"])
async def test_a_hook_around_sends_that_fails_stops_no_send(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = type("Broken", (Hooks,), {name: raising(RuntimeError("no"), is_async=False)})
    log: list[str] = []
    async with make_app(None, Handler(), hooks=[broken(), Around("a", log)]) as app:
        assert (await app.send(OrderPlaced("o-1"))).sent == 1
        await settled(app)
    assert {"a sends", "a sent 1 fine"} <= set(log)
    assert f"the hook {name} raised an error, which was ignored" in caplog.text


@pytest.mark.parametrize("name", sorted(AROUND))
def test_enter_and_exit_must_not_be_async(name: str) -> None:
    wrong = type("Wrong", (Hooks,), {name: raising(ValueError(), is_async=True)})
    with pytest.raises(ConfigurationError, match=f"the hook {name} must not be async"):
        HookSet([wrong()])
