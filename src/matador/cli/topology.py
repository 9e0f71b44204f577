"""``matador topology``: the queues as declared, and as they exist in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from matador.cli.commands import App, Commands, Common
from matador.cli.connection import connect, missing_storage, require_shared
from matador.cli.output import FAILED, CommandError, mark, note, plural, table, warn
from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.model.message import TopologyNote
from matador.model.subscriber import AnySubscriber, SubscriberStub
from matador.model.topology import Topology, WorkQueue
from matador.transports.base import Browsing, Checking, Measuring

topology = Commands("Show, create and check an application's queues.")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue of the topology, and whether it exists in the broker."""

    name: str
    exists: bool


@topology.add("matador topology show shop.py")
def show(app: App, *, common: Common) -> None:
    """Show the declared queues, dead letters, retries and subscribers. Does not connect."""
    target = common.load(app).app
    common.show(_as_json(target), _as_tree(target))


@topology.add("matador topology apply shop.py")
def apply(app: App, *, common: Common) -> None:
    """Create the queues that are missing. Deletes nothing and changes no message."""
    target = common.load(app).app
    require_shared(target)
    notes = asyncio.run(_apply(target))
    names = list(queue_names(target.topology))
    ready = f"{plural(len(names), 'queue')} ready: {', '.join(names)}"
    common.show({"queues": names, "notes": _notes_as_json(notes)}, ready)
    for one in () if common.as_json else notes:
        warn(f"{one.queue}: {one.text}" if one.queue else one.text)


@topology.add("matador topology check shop.py")
def check(app: App, *, common: Common) -> None:
    """Report queues that are missing or differ. Creates none. Exits with 1 if any is missing."""
    target = common.load(app).app
    require_shared(target)
    found, notes = asyncio.run(_check(target))
    missing = [one for one in found if not one.exists]
    listed = [{"queue": one.name, "exists": one.exists} for one in found]
    value = {"queues": listed, "missing": len(missing), "notes": _notes_as_json(notes)}
    common.show(value, _as_table(found, notes))
    if missing:
        note(f"{plural(len(missing), 'queue')} missing: run `matador topology apply {app}`")
        raise typer.Exit(FAILED)


def _notes_as_json(notes: list[TopologyNote]) -> list[dict[str, str | None]]:
    return [{"queue": one.queue, "note": one.text} for one in notes]


def queue_names(topology: Topology) -> Iterator[str]:
    """The full names of all queues, including dead letters."""
    for queue in topology.queues:
        yield topology.full_name(queue.name)
    for _, _, name in topology.dead_letter_names():
        yield name


async def look_for_queues(app: Matador) -> list[QueueStatus]:
    """Which queues exist. The transport must be connected.

    Raises:
        CommandError: the transport does not know.
    """
    transport, can = app.transport, app.transport.capabilities

    async def look(name: str) -> None:
        if can.depth and isinstance(transport, Measuring):
            await transport.depth(name)
        elif can.browse and isinstance(transport, Browsing):
            async for _ in transport.browse(name, limit=1):
                pass
        else:
            raise CommandError(f"{transport.name} cannot tell which queues exist")

    found: list[QueueStatus] = []
    for name in queue_names(app.topology):
        try:
            await look(name)
        except QueueNotFoundError:
            found.append(QueueStatus(name, False))
        else:
            found.append(QueueStatus(name, True))
    return found


def users_of(app: Matador, queue: WorkQueue) -> Iterator[tuple[str, AnySubscriber]]:
    """The subscribers of a queue, each with the key of its event."""
    for event, subscribers in app.schema:
        for one in subscribers:
            if (one.queue or app.topology.default_queue.name) in (
                queue.name,
                app.topology.full_name(queue.name),
            ):
                yield event.key, one


async def _apply(app: Matador) -> list[TopologyNote]:
    await connect(app.transport)
    try:
        return list(await app.transport.apply_topology(app.topology))
    finally:
        await app.transport.disconnect()


async def _check(app: Matador) -> tuple[list[QueueStatus], list[TopologyNote]]:
    if missing_storage(app.transport) is not None:  # connecting would create it
        return [QueueStatus(name, False) for name in queue_names(app.topology)], []
    await connect(app.transport)
    try:
        return await look_for_queues(app), await differences(app)
    finally:
        await app.transport.disconnect()


async def differences(app: Matador) -> list[TopologyNote]:
    """How existing queues differ from the topology. The transport must be connected."""
    if not isinstance(app.transport, Checking):
        return []
    return list(await app.transport.check_topology(app.topology))


def _as_table(found: list[QueueStatus], notes: list[TopologyNote]) -> Table:
    texts: dict[str, list[str]] = {}
    for one in notes:
        texts.setdefault(one.queue or "", []).append(one.text)
    made = table("", "queue", "")
    for one in found:
        said = texts.pop(one.name, [])
        if not one.exists:
            made.add_row(mark(False), one.name, "missing")
        elif said:
            made.add_row(mark(None), one.name, _listed(said))
        else:
            made.add_row(mark(True), one.name, "")
    for name, said in texts.items():  # other parts of the topology, such as queues for retries
        made.add_row(mark(None), name, _listed(said))
    return made


def _listed(texts: list[str]) -> str:
    """Notes, with one line per difference."""
    return "\n".join(text.replace(": ", ":\n", 1).replace("; ", "\n") for text in texts)


def _as_tree(app: Matador) -> Tree:
    described = app.topology
    tree = Tree(
        Text.assemble((described.namespace, "bold"), (f"  on {app.transport.name}", "dim")),
        guide_style="dim",
    )
    retry = described.retry
    for queue in described.queues:
        title = Text.assemble(
            (described.full_name(queue.name), "bold"), ("  " + _traits(app, queue), "dim")
        )
        branch = tree.add(title)
        for key, one in users_of(app, queue):
            stub = "  stub" if isinstance(one, SubscriberStub) else ""
            branch.add(Text.assemble(key, (" → ", "dim"), one.name, (stub, "yellow")))
        for kind in described.kinds_of(queue):
            settings = described.dead_letters[kind]
            limits = [
                *([f"at most {settings.max_length:,}"] if settings.max_length else []),
                *([f"for {settings.ttl:g} s"] if settings.ttl else []),
            ]
            name = described.dead_letter_name(queue.name, kind)
            branch.add(Text.assemble((name, "red"), ("  " + ", ".join(limits), "dim")))
    waits = f"after {retry.default_delay:g} s, at most {retry.max_delay:g} s"
    tree.add(Text(f"retries {waits if retry.enabled else 'immediately'}", "dim"))
    return tree


def _traits(app: Matador, queue: WorkQueue) -> str:
    traits = [
        "default" if queue == app.topology.default_queue else "",
        "consumed" if queue.name in app.consume_from else "",
        f"concurrency {queue.concurrency}" if queue.concurrency else "",
        f"timeout {queue.consumer_timeout:g} s" if queue.consumer_timeout else "",
        "priorities" if queue.priorities else "",
        "exact" if queue.exact else "",
        f"kept for {queue.retention:g} s" if queue.retention else "",
        f"deleted after {queue.expires:g} s without use" if queue.expires else "",
        f"falls back to {queue.fallback}" if queue.fallback else "",
    ]
    return ", ".join(trait for trait in traits if trait)


def _as_json(app: Matador) -> dict[str, object]:
    described = app.topology
    return {
        "namespace": described.namespace,
        "transport": app.transport.name,
        "retry": {
            "enabled": described.retry.enabled,
            "default_delay": described.retry.default_delay,
            "max_delay": described.retry.max_delay,
        },
        "queues": [
            {
                "name": queue.name,
                "full_name": described.full_name(queue.name),
                "default": queue == described.default_queue,
                "consumed": queue.name in app.consume_from,
                "concurrency": queue.concurrency,
                "consumer_timeout": queue.consumer_timeout,
                "priorities": queue.priorities,
                "exact": queue.exact,
                "retention": queue.retention,
                "expires": queue.expires,
                "fallback": queue.fallback,
                "subscribers": [
                    {"event": key, "name": one.name, "stub": isinstance(one, SubscriberStub)}
                    for key, one in users_of(app, queue)
                ],
                "dead_letters": {
                    kind: {
                        "full_name": described.dead_letter_name(queue.name, kind),
                        "max_length": described.dead_letters[kind].max_length,
                        "ttl": described.dead_letters[kind].ttl,
                    }
                    for kind in described.kinds_of(queue)
                },
            }
            for queue in described.queues
        ],
    }
