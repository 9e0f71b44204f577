"""Finds what a module sends and handles: applications, queues of jobs, RPC servers, channels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from matador.catalog.contents import Catalogue, MessageType, Receiver, Wire
from matador.channels import QueueService
from matador.codec.headers import HeaderCodec
from matador.events.app import Matador
from matador.jobs import Queue, Worker
from matador.jobs.functions import JobFunction
from matador.model.subscriber import SubscriberStub
from matador.observe.sources import KINDS, Target
from matador.pubsub import Subscriber as PubSubSubscriber
from matador.rpc import RpcServer
from matador.runtime.functions import MessageFunction


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
    """What receivers receive, in their order."""
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
        """Add what one object receives."""
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
    """What the docstring of a function begins with."""
    text = inspect.getdoc(function) if inspect.isroutine(function) else None
    return " ".join((text or "").split("\n\n")[0].split())
