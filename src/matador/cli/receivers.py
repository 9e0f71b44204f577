"""What a FILE has that receives messages, and what it receives.

Applications, job queues and workers, RPC servers, subscribers and queue services: all commands that
accept every way in find them here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from matador.catalog.contents import Catalogue, MessageType, Receiver, Wire
from matador.channels import QueueService
from matador.cli.connection import imported, in_process, require_shared
from matador.cli.output import UsageError, note, warn, wrong_usage
from matador.codec.headers import HeaderCodec
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.app import Matador
from matador.jobs import Queue, Worker
from matador.jobs.functions import JobFunction
from matador.loading import load_objects
from matador.model.options import suggestion
from matador.model.subscriber import SubscriberStub
from matador.model.topology import WorkQueue
from matador.observe.sources import KINDS, Runner, Source, Target, sources
from matador.pubsub import Subscriber as PubSubSubscriber
from matador.rpc import RpcServer
from matador.runtime.functions import MessageFunction
from matador.transports.base import Measuring

NOUN = "application, job queue, worker, RPC server, subscriber or queue service"


@dataclass(frozen=True, slots=True)
class Found:
    """The receivers of a reference by their names. ``named``: the reference names them."""

    reference: str
    module: ModuleType
    receivers: dict[str, Target]
    named: bool


def find(reference: str, level: int = logging.WARNING) -> Found:
    """The receivers that a command is about. See ``connection.imported``.

    Raises:
        UsageError: there is no such file, module or attribute, or it is something else.
        CommandError: the module raised an error while it was imported.
    """
    found, module, named = imported(lambda: load_objects(reference, KINDS, NOUN), level)
    return Found(reference, module, found, named)


def to_run(found: Found, queues: str | None) -> list[Runner]:
    """The receivers that a worker runs. ``queues`` (of ``--queues``) are for applications.

    An application or a service that only sends is left out unless it was named. A queue with
    declared jobs gets a worker if it has none.

    Raises:
        UsageError: there is nothing to run, or a queue is unknown.
    """
    receivers = found.receivers.values()
    apps = [one for one in receivers if isinstance(one, Matador)]
    if queues is not None:
        consume(apps, queues)
    running = {(one.queue, repr(one.transport)) for one in receivers if isinstance(one, Worker)}
    chosen: list[Runner] = []
    idle: list[str] = []
    for name, one in found.receivers.items():
        if isinstance(one, Queue):
            if (one.name, repr(one.transport)) in running:
                continue
            if one.declared or found.named:
                with wrong_usage(ConfigurationError):
                    chosen.append(Worker(one))
            else:
                idle.append(f"{name} declares no jobs")
        elif isinstance(one, Matador) and not one.consume_from:
            reason = consumes_nothing(name, one)
            if found.named:
                raise UsageError(reason)
            idle.append(reason)
        elif isinstance(one, QueueService) and not one.consumers:
            idle.append(f"{name} has no consumers (channels=[…])")
        else:
            chosen.append(one)
    if not chosen:
        raise UsageError(f"{found.reference} has nothing to run: {'; '.join(idle)}")
    _require_reachable(chosen)
    return chosen


def consumes_nothing(name: str, app: Matador) -> str:
    """The error text for an application that consumes no queue."""
    known = ",".join(queue.name for queue in app.topology.queues)
    return f"{name} consumes no queue (consume_from is empty): add --queues {known}"


def consume(apps: Sequence[Matador], given: str) -> None:
    """Make each application consume those queues of ``--queues`` that it has.

    Raises:
        UsageError: there are no queues or no applications, or a queue is unknown to all of them.
    """
    if not apps:
        raise UsageError("--queues chooses queues of applications, and there is no application")
    known = [queue.name for app in apps for queue in app.topology.queues]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--queues is empty; the queues are {', '.join(known)}")
    for name in names:
        if not any(app.topology.has_queue(name) for app in apps):
            with wrong_usage(QueueNotFoundError):
                apps[0].topology.queue(name)
    for app in apps:
        app.configure(
            consume_from=[
                app.topology.queue(name).name for name in names if app.topology.has_queue(name)
            ]
        )


def _require_reachable(receivers: Sequence[Runner]) -> None:
    """Check that other processes can send to them.

    Raises:
        UsageError: all of them keep messages inside this process, and nothing here sends.
    """
    if all(map(in_process, receivers)):
        raise UsageError(
            "the transport 'memory' keeps messages inside each process, so no other process could "
            "send to this worker: give a URL such as sqlite:///shop.db, redis://localhost or "
            "amqp://localhost"
        )


def look_at(reference: str, level: int = logging.WARNING) -> list[Source]:
    """The sources that a reference names, if other processes can see their messages.

    Raises:
        UsageError, CommandError: see ``find``; or there is nothing to look at.
    """
    found = find(reference, level)
    seen = sources(found.receivers)
    shared = [one for one in seen if not in_process(one.service)]
    if seen and not shared:
        require_shared(seen[0].service)
    if not seen:
        raise UsageError(
            f"{reference} has no queue to look at: {', '.join(found.receivers)} only sends, or has "
            f"a queue of its own in each process"
        )
    for one in seen:
        if one not in shared:
            note(f"left out, because its messages are inside each process: {one.name}")
    return shared


def chosen_queues(seen: Sequence[Source], name: str | None) -> list[tuple[Source, WorkQueue]]:
    """The queues of sources, or those with the short or full name of ``--queue``.

    Raises:
        UsageError: there is no such queue.
    """
    found = [
        (source, queue)
        for source in seen
        for queue in source.topology.queues
        if name in (None, queue.name, source.topology.full_name(queue.name))
    ]
    if not found:
        known = [queue.name for source in seen for queue in source.topology.queues]
        raise UsageError(
            f"there is no queue {name!r} (there are: {', '.join(known)})"
            f"{suggestion(str(name), known)}"
        )
    return found


def warn_of_unknown(seen: Sequence[Source], event: str | None, subscriber: str | None) -> None:
    """Warn of names that the code does not have. Older messages may have them all the same."""
    contents = contents_of(one.service for one in seen)
    keys = {name for one in contents.messages.values() for name in (one.key, *one.aliases)}
    events = sorted({*keys, *(key.rpartition("/")[2] for key in keys)})
    receivers = [one.name for one in contents.receivers]
    for what, name, known in (("event", event, events), ("subscriber", subscriber, receivers)):
        if name is not None and name not in known:
            warn(f"there is no {what} {name!r} in the code{suggestion(name, known)}")


async def waiting(runner: Runner, queue: str | None = None) -> int | None:
    """The number of messages that wait for a receiver; None if the broker does not report it.

    ``queue``: the full name of one of its queues; None: it has one.
    """
    name = queue or runner.consumer_health[0].queue
    if isinstance(runner, Worker):
        provider = runner.provider
        if provider is None or not provider.capabilities.counts:
            return None
        counts = await provider.store.count_jobs(name)
        return counts.waiting + counts.delayed
    transport = runner.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return None
    depth = await transport.depth(name)
    return depth.ready + depth.delayed


# -- what they receive ----------------------------------------------------------------------------


def catalogue_of(
    main: object, module: ModuleType, title: str | None = None, version: str | None = None
) -> Catalogue:
    """The catalogue of an object and of everything else in its module.

    Args:
        main: what the command was given; it names the catalogue.
        module: where it was found.
        title: None: the namespace of the application, or the module's name.
        version: None: ``__version__`` of the module, or ``0``.
    """
    objects = [main, *(one for one in vars(module).values() if one is not main)]
    found = contents_of({id(one): one for one in objects if isinstance(one, KINDS)}.values())
    if title is None:
        named = module.__name__.removeprefix("_matador_app_")
        title = main.topology.namespace if isinstance(main, Matador) else named
    if version is None:
        version = str(getattr(module, "__version__", "0"))
    return Catalogue(title, version, tuple(found.messages.values()), tuple(found.receivers))


def contents_of(receivers: Iterable[Target]) -> Contents:
    """The messages and functions of receivers, in their order."""
    found = Contents()
    for one in receivers:
        found.add(one)
    return found


@dataclass(frozen=True, slots=True)
class Contents:
    """Messages, each once, and the functions that receive them."""

    messages: dict[tuple[str, str], MessageType] = field(
        default_factory=dict[tuple[str, str], MessageType]
    )
    receivers: list[Receiver] = field(default_factory=list[Receiver])

    def add(self, source: Target) -> None:
        """Add the messages and functions of one receiver."""
        if isinstance(source, Matador):
            self._add_events(source)
        elif isinstance(source, Queue):
            self._add_jobs(source.name, source.declared.items())
        elif isinstance(source, Worker):
            self._add_jobs(source.queue, source.functions.items())
        elif isinstance(source, RpcServer):
            self._add_commands(source)
        elif isinstance(source, PubSubSubscriber):
            self._add_subscriber(source)
        else:
            self._add_channels(source)

    def _message(self, made: MessageType) -> MessageType:
        """The message of that kind and key: the first one counts, and is the same for all."""
        return self.messages.setdefault((made.kind, made.key), made)

    def _receive(self, receiver: Receiver) -> None:
        if receiver not in self.receivers:  # a queue and its worker name the same jobs
            self.receivers.append(receiver)

    def _add_events(self, app: Matador) -> None:
        wire: Wire = "headers" if isinstance(app.codec, HeaderCodec) else "envelope"
        for event, subscribers in app.schema:
            message = self._message(
                MessageType(
                    "event",
                    event.key,
                    event.description,
                    event.payload,
                    event.aliases,
                    wire,
                    app.codec.content_type,
                    event.metadata_type,
                )
            )
            for one in subscribers:
                queue = app.topology.queue(one.queue or app.topology.default_queue.name)
                details = {"idempotent": one.idempotent, "importance": one.importance}
                if one.delivery is not None:
                    details["delivery"] = one.delivery
                self._receive(
                    Receiver(
                        one.name,
                        one.description,
                        message,
                        app.topology.full_name(queue.name),
                        isinstance(one, SubscriberStub),
                        details=details,
                    )
                )

    def _add_jobs(self, queue: str, functions: Any) -> None:
        jobs: Iterator[tuple[str | None, JobFunction]] = iter(functions)
        for name, function in jobs:
            label = "any job" if name is None else name
            about = _first_line(function.function)
            message = self._message(
                MessageType("job", f"{queue}/{label}", about or label, function.takes)
            )
            reply = None
            if function.returns not in (Any, None, type(None)):
                reply = MessageType(
                    "reply", f"{queue}/{label}", f"The result of {label}.", function.returns
                )
            self._receive(Receiver(label, about, message, queue, reply=reply))

    def _add_commands(self, server: RpcServer) -> None:
        for command, function in server.functions.items():
            about = _first_line(function.function)
            key = f"{server.queue}/{command}"
            message = self._message(MessageType("command", key, about or command, function.takes))
            reply = MessageType("reply", key, f"The reply to {command}.", function.returns)
            self._receive(Receiver(command, about, message, server.queue, reply=reply))

    def _add_subscriber(self, subscriber: PubSubSubscriber) -> None:
        # The queue of a broadcast has another name in each process.
        exchange = subscriber.exchange.name
        queue = f"{exchange}.*" if subscriber.is_broadcast else subscriber.queue
        for pattern, route in subscriber.bindings:
            self._add_function(f"{exchange}/{pattern}", route.handler, queue, route.function)

    def _add_channels(self, service: QueueService) -> None:
        for queue, (consumer, function) in service.consumers.items():
            key = f"{consumer.channel}/{consumer.name}"
            self._add_function(key, function.name, queue, function)

    def _add_function(self, key: str, name: str, queue: str, function: MessageFunction) -> None:
        about = _first_line(function.function)
        message = self._message(MessageType("message", key, about or key, function.takes))
        self._receive(Receiver(name, about, message, queue))


def _first_line(function: Callable[..., Any]) -> str:
    """The first paragraph of a function's docstring, as one line."""
    text = inspect.getdoc(function) if inspect.isroutine(function) else None
    return " ".join((text or "").split("\n\n")[0].split())
