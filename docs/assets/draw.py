"""Draws the diagrams of the documentation, in light and dark: `python docs/assets/draw.py`.

The tests check that the committed files match what this script draws.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

HERE = Path(__file__).parent


class Palette(NamedTuple):
    """The colors of a page: text, quieter text, lines, and pairs of fill and edge."""

    text: str
    quiet: str
    line: str
    yours: tuple[str, str]
    core: tuple[str, str]
    store: tuple[str, str]
    good: tuple[str, str]
    warn: tuple[str, str]
    bad: tuple[str, str]
    plain: tuple[str, str]


LIGHT = Palette(
    text="#1f2330",
    quiet="#5b6172",
    line="#7a8194",
    yours=("#eaf2fe", "#3b78d8"),
    core=("#efeafc", "#6941c6"),
    store=("#fdf3e3", "#b9770e"),
    good=("#e6f6ec", "#2c8a55"),
    warn=("#fdf3e3", "#b9770e"),
    bad=("#fdeaea", "#c23b3b"),
    plain=("#f4f5f8", "#9aa1b3"),
)
DARK = Palette(
    text="#eceef4",
    quiet="#a9b0c2",
    line="#8a92a8",
    yours=("#1a2b46", "#6ea3f2"),
    core=("#2c2347", "#a98df0"),
    store=("#3a2d17", "#e0a84b"),
    good=("#173527", "#5cc48a"),
    warn=("#3a2d17", "#e0a84b"),
    bad=("#402022", "#ec7f7f"),
    plain=("#262a35", "#6b7288"),
)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace"


class Drawing:
    """Collects shapes; ``svg`` gives the picture."""

    def __init__(self, width: int, height: int, title: str, palette: Palette) -> None:
        self.size = (width, height)
        self.title = title
        self.colors = palette
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 13,
        quiet: bool = False,
        bold: bool = False,
        mono: bool = False,
        anchor: str = "middle",
        color: str | None = None,
    ) -> None:
        fill = color or (self.colors.quiet if quiet else self.colors.text)
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{MONO}"' if mono else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}{family}>{escape(content)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: tuple[str, str],
        *lines: str,
        mono: bool = False,
        radius: float = 9,
        dashed: bool = False,
    ) -> None:
        """A box with a bold first line and quieter ones under it."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{kind[0]}" stroke="{kind[1]}" stroke-width="1.4"{dash}/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 8.5 + 4.5
        for number, line in enumerate(lines):
            first = number == 0
            self.text(
                x + width / 2,
                top + number * 17,
                line,
                size=13.5 if first else 11.5,
                bold=first,
                quiet=not first,
                mono=mono and not first,
            )

    def arrow(self, path: str, *, dashed: bool = False, color: str | None = None) -> None:
        """A line with a head at its end."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = color or self.colors.line
        name = "head" + stroke[1:]
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="1.7" '
            f'marker-end="url(#{name})"{dash}/>'
        )

    def svg(self) -> str:
        """The picture."""
        width, height = self.size
        colors = sorted({c for pair in self.colors[3:] for c in pair} | {self.colors.line})
        heads = "".join(
            f'<marker id="head{c[1:]}" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 1 L9 5 L0 9 z" fill="{c}"/></marker>'
            for c in colors
            if f"#head{c[1:]})" in "".join(self.parts)
        )
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n{body}\n</svg>\n"
        )


def architecture(palette: Palette) -> Drawing:
    """Who talks to whom."""
    d = Drawing(
        960,
        424,
        "Your code sends an event; Matador stores one message per subscriber in a transport; "
        "workers run the subscribers and settle each message.",
        palette,
    )
    c = palette
    # the sender
    d.text(110, 30, "YOUR CODE", size=11, quiet=True, bold=True)
    d.box(20, 44, 180, 62, c.yours, "app.send(event)", "from async or sync code")
    d.box(20, 206, 180, 62, c.yours, "subscribers", "functions, sync or async")
    # the core
    d.text(360, 30, "MATADOR", size=11, quiet=True, bold=True)
    d.box(
        252,
        44,
        216,
        62,
        c.core,
        "fan-out",
        "check the payload, one envelope",
        "per enabled subscriber",
    )
    d.box(252, 206, 216, 62, c.core, "worker", "decode · look up · admit", "validate · run")
    d.box(252, 322, 216, 46, c.core, "retry policy", "a pure function")
    # the transport
    d.text(728, 30, "TRANSPORT", size=11, quiet=True, bold=True)
    d.parts.append(
        f'<rect x="520" y="44" width="416" height="324" rx="12" fill="{c.store[0]}" '
        f'stroke="{c.store[1]}" stroke-width="1.4"/>'
    )
    d.text(728, 70, "SQLite · RabbitMQ · Redis · BullMQ · in process", size=13.5, bold=True)
    d.text(728, 88, "one protocol, one compliance suite", size=11.5, quiet=True)
    for row, (name, what) in enumerate(
        [
            ("shop.events", "ready, delayed, in flight"),
            ("shop.billing", "each queue has its own concurrency"),
        ]
    ):
        y = 108 + row * 78
        d.box(548, y, 360, 58, c.plain, name, what)
    d.box(548, 274, 172, 62, c.bad, "undeliverable", "failed for good;", "keeps its error")
    d.box(736, 274, 172, 62, c.bad, "unhandled", "unknown event", "or subscriber")
    d.text(728, 356, "dead letters: inspect, fix, redrive", size=11.5, quiet=True)
    # arrows
    d.arrow("M200 75 H248")
    d.arrow("M468 68 C506 68 506 128 544 132")
    d.arrow("M468 82 C500 84 500 198 544 206")
    d.text(494, 58, "store", size=11.5, quiet=True)
    d.arrow("M548 228 C516 230 506 236 472 237")
    d.text(496, 254, "deliver", size=11.5, quiet=True)
    d.arrow("M252 237 H204")
    d.text(226, 229, "call", size=11.5, quiet=True)
    d.arrow("M330 268 V318")
    d.text(322, 298, "raised", size=11.5, quiet=True, anchor="end")
    d.arrow("M440 322 C440 276 492 274 544 240", color=c.warn[1])
    d.text(434, 298, "retry later", size=11.5, color=c.warn[1], anchor="end")
    d.arrow("M468 345 C508 345 508 305 544 305", color=c.bad[1])
    d.text(494, 366, "give up", size=11.5, color=c.bad[1])
    # hooks
    d.box(
        20,
        322,
        180,
        46,
        c.plain,
        "hooks",
        "logs · metrics · traces",
        dashed=True,
    )
    d.arrow("M252 258 C222 262 236 340 204 345", dashed=True)
    d.text(
        480,
        410,
        "A message is removed only after its outcome is stored: handled, retried or dead-lettered.",
        size=12.5,
        quiet=True,
    )
    return d


def message(palette: Palette) -> Drawing:
    """The life of one message."""
    d = Drawing(
        960,
        372,
        "A message is decoded, its subscriber looked up, admitted, validated and run; "
        "the outcome is complete, retry, dead letter or release.",
        palette,
    )
    c = palette
    steps = [
        ("decode", "bytes to envelope"),
        ("look up", "event, subscriber"),
        ("admit", "safe to run?"),
        ("validate", "payload to type"),
        ("run", "your function"),
    ]
    d.box(20, 40, 116, 58, c.store, "delivery", "raw bytes")
    for number, (name, what) in enumerate(steps):
        x = 172 + number * 156
        d.box(x, 40, 126, 58, c.core if name != "run" else c.yours, name, what)
        d.arrow(f"M{136 if number == 0 else x - 30} 69 H{x - 4}")
    d.text(480, 22, "EVERY STEP ENDS IN AN OUTCOME", size=11, quiet=True, bold=True)
    # failures, each under its step
    labels = [
        (235, "not an envelope"),
        (391, "unknown event", "or subscriber"),
        (547, "poisonous, or not", "safe to run twice"),
        (703, "invalid", "payload"),
    ]
    for x, *lines in labels:
        d.arrow(f"M{x} 98 V186", color=c.bad[1])
        for row, line in enumerate(lines):
            d.text(x + 8, 130 + row * 15, line, size=11.5, quiet=True, anchor="start")
    d.box(
        172,
        190,
        594,
        52,
        c.bad,
        "dead letter",
        "undeliverable or unhandled, with the reason; the raw bytes are kept",
    )
    d.arrow("M859 98 V186", color=c.good[1])
    d.text(867, 130, "returned", size=11.5, quiet=True, anchor="start")
    d.box(796, 190, 126, 52, c.good, "complete", "and removed")
    d.arrow("M817 98 C817 150 790 160 790 212 V300 H770", color=c.warn[1])
    d.text(809, 130, "failed", size=11.5, quiet=True, anchor="end")
    d.box(560, 276, 206, 52, c.core, "retry policy", "attempts, error, idempotent?")
    d.arrow("M620 276 V246", color=c.bad[1])
    d.text(628, 264, "give up", size=11.5, quiet=True, anchor="start")
    d.box(292, 276, 206, 52, c.warn, "retry", "stored with its delay")
    d.arrow("M560 302 H502", color=c.warn[1])
    d.arrow("M292 302 C120 302 78 260 78 102", color=c.warn[1])
    d.text(214, 322, "delivered again", size=11.5, quiet=True)
    d.text(
        480,
        358,
        "A retry is stored before its original is removed, or with it: one always exists.",
        size=12.5,
        quiet=True,
    )
    return d


def rabbitmq(palette: Palette) -> Drawing:
    """The exchanges and queues of a namespace."""
    d = Drawing(
        960,
        452,
        "A message goes through shop.exchange to the queue shop.events and a worker; delayed ones "
        "and retries pass queues whose messages expire; dead letters go through shop.dlx.",
        palette,
    )
    c = palette
    for x, name in ((95, "YOUR CODE"), (305, "EXCHANGE"), (545, "QUEUE"), (860, "WORKER")):
        d.text(x, 26, name, size=11, quiet=True, bold=True)
    d.box(20, 40, 150, 62, c.yours, "app.send(event)", "confirmed, mandatory")
    d.box(220, 40, 170, 62, c.core, "shop.exchange", "direct")
    d.box(440, 40, 210, 62, c.store, "shop.events", "quorum (classic with", "priorities)")
    d.box(780, 40, 160, 62, c.yours, "subscribers", "prefetch = concurrency")
    # delays
    d.parts.append(
        f'<rect x="220" y="168" width="430" height="112" rx="12" fill="{c.warn[0]}" '
        f'stroke="{c.warn[1]}" stroke-width="1.4"/>'
    )
    d.text(435, 190, "delays: at most three hops", size=13.5, bold=True)
    for x, width, name in (
        (236, 96, "1h"),
        (350, 96, "5m"),
        (464, 106, "20s"),
        (588, 50, "due"),
    ):
        kind = c.core if name == "due" else c.plain
        d.box(x, 204, width, 36, kind, name, radius=7)
    for x in (332, 446, 570):
        d.arrow(f"M{x} 222 H{x + 15}")
    d.text(
        435,
        264,
        "matador.delay.*: an expired message moves to the next queue",
        size=11.5,
        quiet=True,
    )
    # dead letters
    d.box(780, 320, 160, 56, c.core, "shop.dlx", "direct")
    d.box(440, 306, 230, 44, c.bad, "shop.events.undeliverable")
    d.box(440, 362, 230, 44, c.bad, "shop.events.unhandled")
    d.box(220, 306, 180, 44, c.bad, "matador.delay.lost", "work queue deleted")
    d.box(
        20,
        306,
        160,
        62,
        c.plain,
        "shop.events.retry",
        "for services in",
        "other languages",
        dashed=True,
    )
    # arrows
    d.arrow("M170 71 H216")
    d.arrow("M390 71 H436")
    d.arrow("M650 71 H776")
    d.text(713, 62, "deliver", size=11.5, quiet=True)
    d.arrow("M95 102 C95 190 150 222 216 222", color=c.warn[1])
    d.text(96, 206, "with a delay", size=11.5, color=c.warn[1])
    d.arrow("M612 204 C612 150 564 140 550 106", color=c.warn[1])
    d.text(612, 144, "when due", size=11.5, color=c.warn[1], anchor="start")
    d.arrow("M830 102 C830 190 740 222 654 222", color=c.warn[1])
    d.text(748, 234, "retry later", size=11.5, color=c.warn[1], anchor="start")
    d.arrow("M890 102 V316", color=c.bad[1])
    d.text(882, 150, "give up", size=11.5, color=c.bad[1], anchor="end")
    d.arrow("M780 340 C740 340 720 330 674 328", color=c.bad[1])
    d.arrow("M780 358 C740 360 720 382 674 384", color=c.bad[1])
    d.arrow("M636 102 C690 150 690 250 776 336", dashed=True, color=c.bad[1])
    d.text(748, 268, "by the broker: expired,", size=11.5, quiet=True, anchor="start")
    d.text(756, 283, "over a limit,", size=11.5, quiet=True, anchor="start")
    d.text(764, 298, "too many deliveries", size=11.5, quiet=True, anchor="start")
    d.arrow("M310 280 V302", color=c.bad[1])
    d.arrow("M140 306 C150 200 250 160 280 106", dashed=True)
    d.text(
        480,
        438,
        "A retry or dead letter is confirmed by the broker before its original is acknowledged.",
        size=12.5,
        quiet=True,
    )
    return d


def redis(palette: Palette) -> Drawing:
    """The keys of a queue in Redis streams."""
    d = Drawing(
        960,
        440,
        "A message is stored in a stream, or in a sorted set until it is due; a worker holds it "
        "for a lease; what is done is deleted, what failed for good goes to the dead letters.",
        palette,
    )
    c = palette
    d.text(95, 26, "YOUR CODE", size=11, quiet=True, bold=True)
    d.box(20, 96, 150, 62, c.yours, "app.send(event)", "one script per batch")
    d.parts.append(
        f'<rect x="220" y="40" width="500" height="352" rx="12" fill="{c.store[0]}" '
        f'stroke="{c.store[1]}" stroke-width="1.4"/>'
    )
    d.text(470, 26, "REDIS: ALL KEYS OF A QUEUE IN ONE SLOT", size=11, quiet=True, bold=True)
    d.text(470, 64, "matador:{shop.events}", size=13.5, bold=True, mono=True)
    d.text(
        470,
        82,
        "a hash with the settings; all other keys begin with its name",
        size=11.5,
        quiet=True,
    )
    d.box(444, 100, 252, 56, c.plain, ":0", "stream, first in, first out")
    d.box(444, 170, 252, 44, c.plain, ":10 … :1", "streams, with priorities", dashed=True)
    d.box(244, 190, 160, 62, c.warn, ":delayed", "sorted set,", "ordered by due time")
    d.box(444, 232, 252, 44, c.good, ":done", "kept for the retention period")
    d.box(444, 312, 252, 52, c.bad, ".undeliverable:0", ".unhandled:0 · streams")
    d.box(244, 312, 160, 52, c.plain, ":bell :t :uncounted", "small keys for the scripts")
    d.text(860, 26, "WORKERS", size=11, quiet=True, bold=True)
    d.box(780, 96, 160, 62, c.yours, "worker A", "holds it for a lease", "and renews the lease")
    d.box(780, 236, 160, 62, c.yours, "worker B", "claims messages whose", "lease has expired")
    d.arrow("M170 120 H440")
    d.text(300, 112, "store", size=11.5, quiet=True)
    d.arrow("M95 158 C95 210 160 221 240 221", color=c.warn[1])
    d.text(92, 214, "with a delay", size=11.5, color=c.warn[1])
    d.arrow("M340 190 C350 150 390 142 440 140", color=c.warn[1])
    d.text(356, 152, "when due", size=11.5, color=c.warn[1], anchor="end")
    d.arrow("M696 120 H776")
    d.text(748, 112, "read", size=11.5, quiet=True)
    d.arrow("M780 146 C740 160 740 240 700 248", color=c.good[1])
    d.text(752, 190, "done", size=11.5, color=c.good[1], anchor="start")
    d.arrow("M890 158 V232", dashed=True, color=c.bad[1])
    d.text(882, 196, "A dies", size=11.5, color=c.bad[1], anchor="end")
    d.arrow("M820 298 C810 330 760 344 700 344", color=c.bad[1])
    d.text(790, 350, "give up", size=11.5, color=c.bad[1], anchor="start")
    d.text(
        480,
        424,
        "Each outcome is one script: it stores the retry or dead letter and removes the original.",
        size=12.5,
        quiet=True,
    )
    return d


def pipeline(palette: Palette) -> Drawing:
    """The parts of the runtime that all five ways in share."""
    d = Drawing(
        960,
        520,
        "Events, jobs, RPC, pub/sub and channels share one runtime: it sends through an outbox, "
        "takes each delivery through one pipeline, tells hooks what happened, and is started and "
        "shut down as a service. Transports send, receive and settle batches.",
        palette,
    )
    c = palette
    d.text(480, 24, "A WAY IN: A WIRE FORMAT AND A FEW FUNCTIONS", size=11, quiet=True, bold=True)
    for number, (name, what) in enumerate(
        [
            ("events", "one message per subscriber"),
            ("jobs", "states, results"),
            ("rpc", "replies"),
            ("pubsub", "routing keys"),
            ("channels", "consumer classes"),
        ]
    ):
        x = 20 + number * 186
        d.box(x, 38, 176, 50, c.yours, name, what)
        d.arrow(f"M{x + 88} 88 V118")
    d.parts.append(
        f'<rect x="20" y="122" width="920" height="304" rx="12" fill="none" '
        f'stroke="{c.core[1]}" stroke-width="1.4"/>'
    )
    d.text(480, 144, "runtime", size=13.5, bold=True)
    rows: list[tuple[str, tuple[str, str], list[tuple[str, str]]]] = [
        (
            "send",
            c.plain,
            [
                ("encode", "the way in"),
                ("circuit breaker", "optional"),
                ("buffer", "during an outage"),
                ("coalesce", "concurrent sends"),
                ("confirm", "by the broker"),
            ],
        ),
        (
            "receive",
            c.core,
            [
                ("read", "decode, find handler"),
                ("admit", "may it run?"),
                ("run", "your function"),
                ("decide", "retry policy"),
                ("settle", "in batches"),
            ],
        ),
        (
            "tell",
            c.good,
            [
                ("Sent, Attempt", "in batches"),
                ("journal, history", "hooks"),
                ("metrics, traces", "hooks"),
                ("job events", "a hook"),
                ("your Hooks", "per message"),
            ],
        ),
        (
            "live",
            c.plain,
            [
                ("start", "connect, create queues"),
                ("pause, resume", "receiving"),
                ("shutdown", "in bounded time"),
                ("health()", "Health"),
                ("metrics()", "Metrics"),
            ],
        ),
    ]
    for row, (name, kind, parts) in enumerate(rows):
        y = 158 + row * 66
        d.text(40, y + 30, name, size=13.5, bold=True, anchor="start")
        for number, (part, what) in enumerate(parts):
            x = 116 + number * 164
            d.box(x, y, 148, 50, kind, part, what)
            if number and name in ("send", "receive"):
                d.arrow(f"M{x - 16} {y + 25} H{x - 4}")
    d.arrow("M320 426 V456")
    d.text(330, 445, "send, settle", size=11.5, quiet=True, anchor="start")
    d.arrow("M640 456 V430")
    d.text(650, 445, "receive", size=11.5, quiet=True, anchor="start")
    d.box(
        20,
        460,
        920,
        50,
        c.store,
        "transports",
        "send(batch) · receive(batch) · settle(batch) · declared abilities",
    )
    return d


class Room(NamedTuple):
    """A package of the house, and where it is drawn."""

    x: float
    y: float
    width: float
    kind: str
    says: str
    planned: bool = False


HOUSE = {
    "django": Room(150, 34, 100, "yours", "app, worker"),
    "testing": Room(260, 44, 120, "yours", "harness, suites"),
    "cli": Room(420, 44, 230, "yours", "the command line"),
    "dashboard": Room(720, 74, 215, "yours", "the web page"),
    "catalog": Room(755, 146, 180, "good", "AsyncAPI, compatibility"),
    "spark": Room(420, 130, 230, "good", "tables, replays, workers"),
    "observe": Room(420, 216, 230, "good", "hooks: journal, metrics …"),
    "charts": Room(150, 232, 126, "good", "drawn as SVG"),
    "storage": Room(150, 412, 130, "store", "folders, S3 …"),
    "events": Room(150, 312, 180, "core", "schema, fan-out"),
    "jobs": Room(350, 312, 120, "core", "run this later"),
    "rpc": Room(490, 312, 140, "core", "call, and wait"),
    "pubsub": Room(650, 312, 130, "core", "by routing key"),
    "channels": Room(800, 312, 135, "core", "consumer classes"),
    "runtime": Room(310, 412, 625, "core", "pipeline, facts and hooks, Service, Outbox"),
    "codec": Room(150, 512, 170, "plain", "envelopes and bytes"),
    "policy": Room(350, 512, 190, "plain", "every decision"),
    "transports": Room(570, 512, 365, "store", "one protocol, one package per broker"),
    "model": Room(150, 598, 785, "plain", "immutable values: messages, events, topology"),
    "errors": Room(150, 684, 785, "plain", "the error tree"),
}
"""Every top-level package. ``tests/docs/test_house.py`` compares it with the code."""

IMPORTS = {
    ("testing", "events"): "M290 94 V308",
    ("testing", "jobs"): "M352 94 V216 C352 280 374 290 386 308",
    ("testing", "rpc"): "M360 94 V216 C360 300 516 276 526 308",
    ("testing", "pubsub"): "M368 94 V224 C368 300 560 284 640 286 C684 288 690 296 692 308",
    ("testing", "channels"): "M376 94 V230 C376 300 560 276 680 276 C800 276 832 286 838 308",
    ("cli", "spark"): "M535 94 V126",
    ("cli", "dashboard"): "M650 64 C680 64 690 90 716 95",
    ("cli", "catalog"): "M650 84 C700 92 710 150 751 166",
    ("django", "cli"): "M220 34 C260 6 480 6 515 40",
    ("dashboard", "spark"): "M740 124 C736 142 700 152 654 152",
    ("catalog", "model"): "M935 171 C950 171 950 230 950 420 C950 560 950 623 939 623",
    ("spark", "observe"): "M535 180 V212",
    ("observe", "charts"): "M420 254 C380 266 330 268 280 262",
    ("observe", "events"): "M420 241 C360 241 316 262 316 308",
    ("observe", "jobs"): "M450 266 V308",
    ("observe", "rpc"): "M580 266 V308",
    ("observe", "pubsub"): "M650 256 C694 260 718 276 722 308",
    ("observe", "channels"): "M650 238 C740 242 862 248 870 308",
    ("observe", "storage"): "M430 266 C420 300 300 296 160 296 C132 296 136 340 136 380 V412 "
    "C136 432 138 437 146 437",
    ("storage", "model"): "M150 452 C136 456 136 490 136 520 V600 C136 618 138 623 146 623",
    ("events", "runtime"): "M320 362 V408",
    ("jobs", "runtime"): "M410 362 V408",
    ("rpc", "runtime"): "M560 362 V408",
    ("pubsub", "runtime"): "M715 362 V408",
    ("channels", "runtime"): "M867 362 V408",
    ("runtime", "codec"): "M330 462 C330 486 260 486 250 508",
    ("runtime", "policy"): "M445 462 V508",
    ("runtime", "transports"): "M752 462 V508",
    ("codec", "model"): "M235 562 V594",
    ("policy", "model"): "M445 562 V594",
    ("transports", "model"): "M752 562 V594",
    ("model", "errors"): "M542 648 V680",
}
"""The arrows: who imports whom. What follows from other arrows is left out."""


def house(palette: Palette) -> Drawing:
    """The packages, and which imports which."""
    d = Drawing(
        960,
        778,
        "The packages of Matador. Each may import those that its arrows lead to, directly or over "
        "others.",
        palette,
    )
    for y, label in (
        (69, "WHAT PEOPLE USE"),
        (198, "DATA"),
        (337, "WAYS IN"),
        (437, "DELIVERY"),
        (537, "BUILDING BLOCKS"),
        (666, "VALUES"),
    ):
        d.text(20, y + 4, label, size=11, quiet=True, bold=True, anchor="start")
    for name, room in HOUSE.items():
        kind: tuple[str, str] = getattr(palette, room.kind)
        d.box(room.x, room.y, room.width, 50, kind, name, room.says, dashed=room.planned)
    for (importer, _), path in IMPORTS.items():
        d.arrow(path, dashed=HOUSE[importer].planned)
    d.text(
        480,
        762,
        "An arrow means “imports” and points down; imports that follow from others are left out.",
        size=12.5,
        quiet=True,
    )
    return d


DRAWINGS: dict[str, Callable[[Palette], Drawing]] = {
    "architecture": architecture,
    "house": house,
    "message": message,
    "pipeline": pipeline,
    "rabbitmq": rabbitmq,
    "redis": redis,
}


def drawn() -> dict[str, str]:
    """Every picture, by its file name."""
    return {
        f"{name}-{mode}.svg": draw(palette).svg()
        for name, draw in DRAWINGS.items()
        for mode, palette in (("light", LIGHT), ("dark", DARK))
    }


def main() -> None:
    """Write the files."""
    for name, svg in drawn().items():
        (HERE / name).write_text(svg)
        print(f"drew {name}")


if __name__ == "__main__":
    main()
