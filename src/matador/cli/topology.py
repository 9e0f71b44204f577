"""``matador topology``: the queues as declared, and as they exist in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import typer
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from matador.catalog.contents import Receiver
from matador.cli.commands import Commands, Common, Connecting, File
from matador.cli.connection import connect, in_process, missing_storage
from matador.cli.output import FAILED, CommandError, UsageError, mark, note, plural, table, warn
from matador.cli.receivers import contents_of, find
from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.model.message import TopologyNote
from matador.model.subscriber import AnySubscriber
from matador.model.topology import WorkQueue
from matador.observe.sources import Source, sources
from matador.transports.base import Browsing, Measuring, Transport, members_of

_SETTINGS = (
    "concurrency", "consumer_timeout", "priorities", "exact", "retention", "max_length",
    "message_ttl", "expires", "fallback",
)  # fmt: skip
"""The settings of a work queue that ``show --json`` prints under their own names."""

topology = Commands("Show, create and check queues.")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue of the topology, and whether it exists in the broker.

    ``on``: which transport of a group was asked.
    """

    name: str
    exists: bool
    on: str | None = None

    @property
    def shown(self) -> str:
        """Its name, with the transport if there are several."""
        return self.name if self.on is None else f"{self.name} on {self.on}"


@topology.add("matador topology show shop.py")
def show(file: File, *, common: Common) -> None:
    """Show the declared queues, dead letters, retries and receivers. Does not connect."""
    seen = sources(find(file, common.level()).receivers)
    if not seen:
        raise UsageError(f"{file} declares no queues")
    common.show(_as_json(seen), *map(_as_tree, seen))


@topology.add("matador topology apply shop.py")
def apply(file: File, *, common: Connecting) -> None:
    """Create the queues that are missing. Deletes nothing and changes no message."""
    seen = common.sources(file)
    notes = asyncio.run(_apply(seen, common))
    names = [name for source in seen for name in queue_names(source)]
    ready = f"{plural(len(names), 'queue')} ready: {', '.join(names)}"
    common.show({"queues": names, "notes": _notes_as_json(notes)}, ready)
    for one in () if common.as_json else notes:
        warn(f"{one.queue}: {one.text}" if one.queue else one.text)


@topology.add("matador topology check shop.py")
def check(file: File, *, common: Connecting) -> None:
    """Report queues that are missing or differ. Creates none. Exits with 1 if any is missing."""
    seen = common.sources(file)
    found, notes = asyncio.run(_check(seen, common))
    missing = [one for one in found if not one.exists]
    listed = [
        {"queue": one.name, "exists": one.exists} | ({"transport": one.on} if one.on else {})
        for one in found
    ]
    value = {"queues": listed, "missing": len(missing), "notes": _notes_as_json(notes)}
    common.show(value, _as_table(found, notes))
    if missing:
        note(f"{plural(len(missing), 'queue')} missing: run `matador topology apply {file}`")
        raise typer.Exit(FAILED)


def _notes_as_json(notes: list[TopologyNote]) -> list[dict[str, str | None]]:
    return [{"queue": one.queue, "note": one.text} for one in notes]


def queue_names(source: Source) -> Iterator[str]:
    """The full names of all queues, including dead letters."""
    yield from source.queues
    for _, _, name in source.letter_queues:
        yield name


async def look_for_queues(source: Source) -> list[QueueStatus]:
    """Which queues exist, on each transport of a group that other processes can reach. The
    transport must be connected.

    Raises:
        CommandError: a transport does not know.
    """
    found: list[QueueStatus] = []
    members = members_of(source.transport)
    for transport in [
        one for one in members if len(members) == 1 or not one.capabilities.in_process
    ]:
        if transport.state.status != "connected":
            raise CommandError(f"{transport.name} is {transport.state}")
        for name in queue_names(source):
            exists, on = True, transport.name if len(members) > 1 else None
            try:
                await _look(transport, name)
            except QueueNotFoundError:
                exists = False
            found.append(QueueStatus(name, exists, on))
    return found


async def _look(transport: Transport, name: str) -> None:
    can = transport.capabilities
    if can.depth and isinstance(transport, Measuring):
        await transport.depth(name)
    elif can.browse and isinstance(transport, Browsing):
        async for _ in transport.browse(name, limit=1):
            pass
    else:
        raise CommandError(f"{transport.name} cannot tell which queues exist")


def users_of(app: Matador, queue: WorkQueue) -> Iterator[tuple[str, AnySubscriber]]:
    """The subscribers of a queue, each with the key of its event."""
    for event, subscribers in app.schema:
        for one in subscribers:
            if (one.queue or app.topology.default_queue.name) in (
                queue.name,
                app.topology.full_name(queue.name),
            ):
                yield event.key, one


async def _apply(seen: Sequence[Source], common: Connecting) -> list[TopologyNote]:
    notes: list[TopologyNote] = []
    for source in seen:
        await connect(source.transport, common.wait)
        try:
            notes += await source.apply()
        finally:
            await source.transport.disconnect()
    return notes


async def _check(
    seen: Sequence[Source], common: Connecting
) -> tuple[list[QueueStatus], list[TopologyNote]]:
    found: list[QueueStatus] = []
    notes: list[TopologyNote] = []
    for source in seen:
        if missing_storage(source.transport) is not None:  # connecting would create it
            found += [QueueStatus(name, False) for name in queue_names(source)]
            continue
        await connect(source.transport, common.wait)
        try:
            found += await look_for_queues(source)
            notes += await source.differences()
        finally:
            await source.transport.disconnect()
    return found, notes


def _as_table(found: list[QueueStatus], notes: list[TopologyNote]) -> Table:
    texts: dict[str, list[str]] = {}
    for one in notes:
        texts.setdefault(one.queue or "", []).append(one.text)
    made = table("", "queue", "")
    for one in found:
        said = texts.pop(one.name, [])
        if not one.exists:
            made.add_row(mark(False), one.shown, "missing")
        elif said:
            made.add_row(mark(None), one.shown, _listed(said))
        else:
            made.add_row(mark(True), one.shown, "")
    for name, said in texts.items():  # other parts of the topology, such as queues for retries
        made.add_row(mark(None), name, _listed(said))
    return made


def _listed(texts: list[str]) -> str:
    """Notes, with one line per difference."""
    return "\n".join(text.replace(": ", ":\n", 1).replace("; ", "\n") for text in texts)


def _as_tree(source: Source) -> Tree:
    described, app = source.topology, source.app
    title = described.namespace if app is not None else f"{source.name} ({source.way})"
    tree = Tree(
        Text.assemble((title, "bold"), (f"  on {_transport(source)}", "dim")), guide_style="dim"
    )
    for queue in described.queues:
        full = described.full_name(queue.name)
        branch = tree.add(Text.assemble((full, "bold"), ("  " + _traits(source, queue), "dim")))
        for one in _receivers(source, full):
            stub = "  stub" if one.elsewhere else ""
            branch.add(Text.assemble(_key(one), (" → ", "dim"), one.name, (stub, "yellow")))
        for kind in described.kinds_of(queue):
            settings = described.letters_of(queue)[kind]
            limits = [
                *([f"at most {settings.max_length:,}"] if settings.max_length else []),
                *([f"for {settings.ttl:g} s"] if settings.ttl else []),
            ]
            name = described.dead_letter_name(queue.name, kind)
            branch.add(Text.assemble((name, "red"), ("  " + ", ".join(limits), "dim")))
    if app is not None:
        retry = described.retry
        waits = f"after {retry.default_delay:g} s, at most {retry.max_delay:g} s"
        tree.add(Text(f"retries {waits if retry.enabled else 'immediately'}", "dim"))
    return tree


def _receivers(source: Source, queue: str) -> list[Receiver]:
    """The receivers of a queue, given its full name. A job queue has one."""
    found = contents_of([source.service]).receivers
    return [one for one in found if one.address == queue or source.way == "jobs"]


def _key(receiver: Receiver) -> str:
    key = receiver.message.key
    return key if receiver.message.kind in ("event", "message") else key.rpartition("/")[2]


def _transport(source: Source) -> str:
    return "memory" if in_process(source.service) else source.transport.name


def _traits(source: Source, queue: WorkQueue) -> str:
    app = source.app
    traits = [
        "default" if app is not None and queue == app.topology.default_queue else "",
        "consumed" if app is not None and queue.name in app.consume_from else "",
        f"concurrency {queue.concurrency}" if queue.concurrency else "",
        f"timeout {queue.consumer_timeout:g} s" if queue.consumer_timeout else "",
        "priorities" if queue.priorities else "",
        "exact" if queue.exact and app is not None else "",
        f"kept for {queue.retention:g} s" if queue.retention else "",
        f"deleted after {queue.expires:g} s without use" if queue.expires else "",
        f"falls back to {queue.fallback}" if queue.fallback else "",
    ]
    return ", ".join(trait for trait in traits if trait)


def _as_json(seen: Sequence[Source]) -> dict[str, object]:
    """The queues of all sources; the namespace and retries are those of the first one."""
    first = seen[0].topology
    return {
        "namespace": first.namespace,
        "transport": _transport(seen[0]),
        "retry": {
            "enabled": first.retry.enabled,
            "default_delay": first.retry.default_delay,
            "max_delay": first.retry.max_delay,
        },
        "queues": [_queue(source, queue) for source in seen for queue in source.topology.queues],
    }


def _queue(source: Source, queue: WorkQueue) -> dict[str, object]:
    described, app = source.topology, source.app
    full = described.full_name(queue.name)
    return {
        "name": queue.name,
        "full_name": full,
        "way": source.way,
        "transport": _transport(source),
        "default": app is not None and queue == described.default_queue,
        "consumed": app is None or queue.name in app.consume_from,
        **{name: getattr(queue, name) for name in _SETTINGS},
        "subscribers": [
            {"event": _key(one), "name": one.name, "stub": one.elsewhere}
            for one in _receivers(source, full)
        ],
        "dead_letters": {
            kind: {
                "full_name": described.dead_letter_name(queue.name, kind),
                "max_length": described.letters_of(queue)[kind].max_length,
                "ttl": described.letters_of(queue)[kind].ttl,
            }
            for kind in described.kinds_of(queue)
        },
    }
