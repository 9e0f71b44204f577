"""What ``matador lake replay`` and ``redrive`` send to: an application or a job queue."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from matador.cli.commands import Common, Event, Subscriber, option
from matador.cli.connection import imported, require_shared
from matador.cli.output import UsageError, wrong_usage
from matador.cli.spark_session import show_spark_logs
from matador.errors import ConfigurationError, EventNotRegisteredError
from matador.events.app import Matador
from matador.loading import load_target
from matador.transports.base import Transport

if TYPE_CHECKING:
    from matador.jobs import Queue

WRONG = (ConfigurationError, EventNotRegisteredError)
"""What is wrong usage, if it is raised while a replay is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFilters:
    """The options that choose rows of the lake, named as ``Lake.replay`` names them."""

    event: Event = None
    subscriber: Subscriber = None
    name: Annotated[str | None, option("NAME", "Only jobs of this name, of a job queue.")] = None
    since: Annotated[
        str | None,
        option("TIME", "Only from this time on, such as 2026-11-01 or 2026-11-01T08:00Z."),
    ] = None
    until: Annotated[str | None, option("TIME", "Only before this time.")] = None


@dataclass(frozen=True, slots=True)
class ReplayWords:
    """What a command says of events, or of jobs."""

    columns: tuple[str, str]
    one: str
    dead: str
    send: str
    sent: str
    found: str
    left_out: str


OF_EVENTS = ReplayWords(
    ("event", "subscriber"),
    one="message",
    dead="dead letter",
    send="send",
    sent="sent",
    found="events",
    left_out="the application has no such subscriber",
)
OF_JOBS = ReplayWords(
    ("job", "queue"),
    one="job",
    dead="failed job",
    send="add",
    sent="added",
    found="jobs",
    left_out="they need the results of other jobs, which the lake does not have",
)


@dataclass(frozen=True, slots=True)
class ReplayingTo:
    """Where events or jobs are sent: an application, or a job queue."""

    target: Matador | Queue
    app: Matador | None
    transport: Transport
    words: ReplayWords


def load_replay_target(common: Common, reference: str) -> ReplayingTo:
    """The application or the job queue that a command names.

    Raises:
        UsageError: it is neither, or its messages are inside each process.
    """
    show_spark_logs(common.verbose)
    target = imported(lambda: load_target(reference), logging.WARNING)
    if isinstance(target, Matador):
        require_shared(target)
        return ReplayingTo(target, target, target.transport, OF_EVENTS)
    from matador.spark.replay.jobs import check_shared

    with wrong_usage(*WRONG):
        transport = check_shared(target).provider.transport
    return ReplayingTo(target, None, transport, OF_JOBS)


def check_filters(target: ReplayingTo, filters: LakeFilters, to: str | None) -> None:
    """Check the options before Spark starts, which takes a while.

    Raises:
        UsageError: one of them is invalid.
    """
    from matador.spark.replay.selection import check_subscriber, moment, target_of

    app = target.app
    if app is not None and filters.name is not None:
        raise UsageError("--name is for the jobs of a queue: select events with --event")
    for option_, value in (
        ("event", filters.event),
        ("subscriber", filters.subscriber),
        ("to", to),
    ):
        if app is None and value is not None:
            raise UsageError(f"--{option_} is for events: select the jobs of a queue with --name")
    with wrong_usage(*WRONG):
        for name, given in (("--since", filters.since), ("--until", filters.until)):
            if given is not None:
                moment(given, name)
        if app is None:
            return
        if filters.event is not None:
            app.schema.event(filters.event)
        if filters.subscriber is not None:
            check_subscriber(app, filters.subscriber)
        target_of(app, to)
