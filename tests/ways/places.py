"""Where the messages of a test go: a transport, with names of its own, tidied up afterwards."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.rabbitmq import Raw, topologies
from tests.support.redis import forget_keys
from tests.support.sqs import CREDENTIALS, forget_queues

from matador.runtime.connection import is_memory
from matador.transports.base import Transport
from matador.transports.memory import shared_memory
from matador.transports.urls import transport_from_url

SHORTEST_LEASE = {"sqlite": 0.2, "redis": 1, "sqs": 1}
"""Seconds after which what a receiver has abandoned is delivered again. The others do that at once:
their deliveries belong to a connection."""


@dataclass
class Place:
    """A transport, and a name that no other test uses."""

    transport: str
    address: str
    tag: str
    used: set[Transport] = field(default_factory=set[Transport])

    def url(self, *, lease: float | None = None, jobs: bool = False) -> str:
        """The URL. ``lease``: how soon abandoned messages come again, where that can be said."""
        url = self.address
        if lease is not None and self.transport in SHORTEST_LEASE:
            url = f"{url}{'&' if '?' in url else '?'}lease={lease:g}"
        if jobs and self.transport == "redis":  # on Redis a job is a BullMQ job
            url = f"bullmq{url.removeprefix('redis')}"
        return url

    def open(self, *, lease: float | None = None, jobs: bool = False) -> Transport:
        """A transport to look, or to receive, from outside. One in memory is that of all."""
        url = self.url(lease=lease, jobs=jobs)
        transport = shared_memory(url) if is_memory(url) else transport_from_url(url)
        self.used.add(transport)
        return transport

    async def close(self) -> None:
        """Disconnect, and delete everything."""
        for transport in self.used:
            await transport.disconnect()
        match self.transport:
            case "rabbitmq":
                await asyncio.to_thread(self._delete_from_rabbitmq)
            case "redis":
                await forget_keys(self.address.partition("?")[0], self.tag)
            case "sqs":
                await forget_queues(self.address, self.tag)
            case "kafka":
                await asyncio.to_thread(forget_topics, self.address, self.tag, f"jobs.{self.tag}")
            case _:
                pass

    def _delete_from_rabbitmq(self) -> None:
        with Raw(self.address) as raw:
            raw.delete(topologies(self.used))


@asynccontextmanager
async def place_on(transport: str, folder: Path, url: str = "") -> AsyncGenerator[Place]:
    """A place on a transport; ``url``: on a server of the test's own."""
    tag = f"w-{uuid4().hex[:10]}"
    match transport:
        case "memory":
            address = f"memory://?name={tag}"
        case "sqlite":
            address = f"sqlite:///{folder / 'ways.db'}"
        case "redis":
            address = f"{url or broker_url('redis')}?prefix={tag}"
        case "sqs":
            os.environ |= CREDENTIALS
            # A busy machine may take long for a connection; only a hang takes a minute.
            address = f"{broker_url('sqs')}&wait=1&timeout=60"
        case "kafka":
            address = f"{broker_url('kafka')}?partitions=1"
        case _:
            address = url or broker_url(transport)
    place = Place(transport, address, tag)
    try:
        yield place
    finally:
        await place.close()
