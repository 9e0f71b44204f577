"""Findings for tests of reports: a usual day, or so many of everything, or hostile."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from matador.spark.aggregates.reconcile import Line, Odd, QueueCheck, Reconciliation
from matador.spark.report.findings import DeadLetterGroup, Findings, Moment, SubscriberHealth

NOW = datetime(2026, 11, 15, 20, 0, tzinfo=UTC)
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> & </pre></style>"
    "\x1b[31mred\x00 \u202e"
)


def sample(subscribers: int = 6, moments: int = 70, groups: int = 4, *, text: str = "") -> Findings:
    """Findings with so many of each; ``text`` goes wherever users can put one."""
    dice = random.Random(7)
    step = 900
    start = NOW - timedelta(seconds=step * moments)
    names = [
        (f"{area}.{what}{text}", f"{verb}{text}")
        for area, what, verb in (
            *(("order", "placed", "email-receipt"), ("order", "placed", "reserve-stock")),
            *(("order", "paid", "ship-parcel"), ("user", "joined", "greet")),
            *(("invoice", "sent", "archive"), ("stock", "low", "order-more")),
        )
    ]
    names += [(f"import.row-{n % 12}", f"load-{n}") for n in range(max(0, subscribers - 6))]
    return Findings(
        lake=f"lake{text}",
        made_at=NOW,
        step=step,
        moments=tuple(_moment(dice, at, start, step, text) for at in range(moments)),
        subscribers=tuple(_subscriber(dice, *name) for name in names[:subscribers]),
        more_subscribers=0 if subscribers < 50 else 13,
        groups=tuple(_group(at, text) for at in range(groups)),
        more_groups=0 if groups < 50 else 7,
        quarantined=(("invalid-payload", 12), ("unknown-event", 3)) if groups else (),
        reconciliation=_accounts(dice, names[:subscribers], text),
    )


def _moment(dice: random.Random, at: int, start: datetime, step: int, text: str) -> Moment:
    wave = 400 + 300 * math.sin(at / 11) + dice.uniform(-40, 40)
    bad = 60 if 40 < at < 47 else 3
    quiet = 20 < at < 23
    if quiet:
        return Moment(start + timedelta(seconds=step * at))
    slow = 3 if bad > 50 else 1
    return Moment(
        start + timedelta(seconds=step * at),
        sent=int(wave),
        handled=int(wave * 0.9),
        retried=int(wave * 0.05 * slow),
        dead_lettered=bad,
        discarded=2,
        by_event={
            f"order.placed{text}": int(wave * 0.6),
            "order.paid": int(wave * 0.3),
            "user.joined": int(wave * 0.1),
        },
        wait=(4 + dice.random(), 30 * slow, 90.0 * slow),
        duration=(25 + 5 * dice.random(), 140 * slow, 450.0 * slow),
    )


def _subscriber(dice: random.Random, event_key: str, name: str) -> SubscriberHealth:
    count = dice.randrange(100, 20_000)
    dead = dice.choice([0, 0, count // 50, count // 12])
    retries = count // 20
    p50 = dice.lognormvariate(3, 1)
    return SubscriberHealth(
        *(event_key, name, count, count // 3, count - count // 3, count),
        *(count - dead - retries - 5, retries, dead, 5),
        *(p50 / 3, p50, p50 * 2, p50, p50 * 4, p50 * 9),
    )


def _group(at: int, text: str) -> DeadLetterGroup:
    errors = (
        (
            "TimeoutError",
            "no answer from <ip> within <n> s",
            "no answer from 10.0.0.7:443 within 30 s",
        ),
        ("KeyError", "<text>", "'customer-17'"),
        ("ValueError", "order <n> has no lines", "order 4711 has no lines"),
        (None, "no subscriber <text> of <text>", "no subscriber 'shp' of 'order.paid'"),
    )
    kind, normal, example = errors[at % 4]
    return DeadLetterGroup(
        *(f"{at:010x}", kind and kind + text, normal + text, 4000 // (at + 1) ** 2 + 1, at == 1),
        *(NOW - timedelta(hours=9), NOW - timedelta(minutes=at), f"id-{at}{text}", example + text),
        *((f"order.placed{text}",), (f"ship-parcel{text}", "greet", "a", "b"), (f"events{text}",)),
    )


def _accounts(dice: random.Random, names: list[tuple[str, str]], text: str) -> Reconciliation:
    lines: list[Line] = []
    for at, (event_key, name) in enumerate(names):
        handled, dead, waiting = dice.randrange(100, 20_000), dice.randrange(90), dice.randrange(20)
        sent = handled + dead + waiting + 2
        odd = 1 if at == 2 else 0
        lines.append(Line(event_key, name, sent, handled, dead, 2, waiting, 7, 3, odd, odd))
    odd = tuple(
        Odd("waiting", f"0198-{n}{text}", f"order.placed{text}", "ship-parcel", "shop.events")
        for n in range(min(len(names), 20))
    )
    queues = (QueueCheck(f"shop.events{text}", 31, 31),) if names else ()
    return Reconciliation(tuple(lines), queues, odd)
