"""Calls of BullMQ's own scripts, made ready for a pipeline or a transaction.

The official package knows the scripts, the keys and how arguments are packed; most of its methods
run a script at once. Here the same arguments become values (``Call``), so that many calls travel
together. Two small scripts are our own: BullMQ has none that takes one certain job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from bullmq.redis_connection import RedisConnection, loadScript
from bullmq.scripts import Scripts

from matador.model.topology import DeadLetterKind

_pack = msgspec.msgpack.encode

Argument: TypeAlias = str | int | float | bytes

OURS = ("take", "take_failed")
SHIPPED = {"moveJobFromActiveToWait": "moveJobFromActiveToWait-9.lua"}
"""Scripts that the package ships and does not load."""

USED = (
    *OURS,
    *SHIPPED,
    "addDelayedJob",
    "addPrioritizedJob",
    "addStandardJob",
    "drain",
    "extendLock",
    "getCounts",
    "getRanges",
    "moveStalledJobsToWait",
    "moveToActive",
    "moveToDelayed",
    "moveToFinished",
    "removeJob",
    "retryJob",
)
"""All scripts that are called here: the server is told them at every connection."""

# A job that a Node worker fails is tried three times, as documented for jobs on Redis.
_OPTIONS = {
    "attempts": 3,
    "backoff": {"type": "exponential", "delay": 1000},
    "removeOnComplete": True,
    "removeOnFail": False,
}
_NEVER = 2**31 - 1  # how often a job may stall: whether it is poison is decided elsewhere


class Call(NamedTuple):
    """A script with its keys and arguments."""

    script: str
    keys: Sequence[str | bytes]
    arguments: Sequence[Argument]


@cache
def our_script(name: str) -> str:
    """The text of one of our own scripts."""
    return (files("matador.transports.bullmq") / "lua" / f"{name}.lua").read_text("utf-8")


def load_more(connection: Any) -> None:
    """Make our own scripts, and those the package leaves out, known to its connection."""
    client, commands = connection.conn, connection.commands
    for name in OURS:
        commands[name] = client.register_script(our_script(name))
    for name, file in SHIPPED.items():
        commands[name] = client.register_script(loadScript(file))


def connection_of(client: Any) -> Any:
    """The package's connection around a client, with all scripts known to it."""
    connection: Any = RedisConnection(client)
    load_more(connection)
    return connection


class _Job:
    """As much of a job as the package's methods look at."""

    def __init__(self, id_: str, **more: Any) -> None:
        self.id = id_
        self.name = ""
        self.data: Any = None
        self.timestamp = 0
        self.opts: dict[str, Any] = {}
        self.attempts = 1
        self.attemptsMade = 0
        self.parent = self.parentKey = self.repeatJobKey = self.deduplication_id = None
        self.queue = self
        self.__dict__.update(more)


class JobScripts(Scripts):
    """The calls for one queue. Times are in milliseconds."""

    def __init__(self, prefix: str, name: str, connection: Any) -> None:
        super().__init__(prefix, name, connection)
        self._all: dict[str, str] = cast("Any", self).keys
        self._bytes = {name: key.encode() for name, key in self._all.items()}

    def key(self, name: str) -> str:
        """The key of a part of the queue."""
        return self._all[name]

    def job_key(self, id_: str) -> str:
        """The key of a job."""
        return self._all[""] + id_

    def lock_key(self, id_: str) -> str:
        """The key of a job's lock."""
        return f"{self._all['']}{id_}:lock"

    def _named(self, *names: str) -> list[str | bytes]:
        return [self._bytes[name] for name in names]  # bytes are not encoded at every call

    # -- adding ------------------------------------------------------------------------------------

    def addJobArgs(self, job: Any) -> list[Any]:  # noqa: N802 - the package's name
        """As the package's, but with data that are JSON already, so that no byte changes."""
        packed = _pack(
            [self._all[""], job.id, job.name, job.timestamp, None, None, None, None, None]
        )
        return [packed, job.data, _pack(job.opts)]

    def add(self, id_: str, name: str, data: str, now: int, *, delay: int, priority: int) -> Call:
        """Add a job; one whose id is taken is ignored by BullMQ."""
        options: dict[str, Any] = {**_OPTIONS, "delay": delay}
        if id_:
            options["jobId"] = id_
        if priority:
            options["priority"] = priority
        job = _Job(id_, name=name, data=data, timestamp=now, opts=options)
        arguments = self.addJobArgs(job)
        if delay:
            keys = self._named("marker", "meta", "id", "delayed", "completed", "events")
            return Call("addDelayedJob", keys, [*arguments, delay])
        if priority:
            keys = self._named(
                "marker",
                "meta",
                "id",
                "prioritized",
                "delayed",
                "completed",
                "active",
                "events",
                "pc",
            )
            return Call("addPrioritizedJob", keys, [*arguments, priority])
        keys = self._named(
            "wait", "paused", "meta", "id", "completed", "delayed", "active", "events", "marker"
        )
        return Call("addStandardJob", keys, [*arguments, now])

    # -- taking ------------------------------------------------------------------------------------

    def next_job(self, token: str, now: int, lock: int) -> Call:
        """Take the next job that is due."""
        keys = self._named(
            "wait",
            "active",
            "prioritized",
            "events",
            "stalled",
            "limiter",
            "delayed",
            "paused",
            "meta",
            "pc",
            "marker",
        )
        options = _pack({"token": token, "lockDuration": lock, "limiter": None})
        return Call("moveToActive", keys, [self._all[""], now, options])

    def take(self, id_: str, token: str, now: int, lock: int) -> Call:
        """Take a certain job that waits."""
        keys = self._named("wait", "active", "prioritized", "delayed", "events")
        keys += [self.job_key(id_), self.lock_key(id_)]
        return Call("take", keys, [id_, token, lock, now])

    def take_failed(
        self, kind: DeadLetterKind, token: str, lock: int, most: int, ids: Sequence[str] = ()
    ) -> Call:
        """Hold failed jobs of a kind: these, or the oldest."""
        default = int(kind == "undeliverable")
        arguments = [self._all[""], kind, default, most, lock, token, *ids]
        return Call("take_failed", [self._all["failed"]], arguments)

    def extend(self, id_: str, token: str, lock: int) -> Call:
        """Hold a job for longer."""
        return Call("extendLock", [self.lock_key(id_), self._all["stalled"]], [token, lock, id_])

    def recover(self, now: int, interval: int) -> Call:
        """Give back what vanished workers held; does nothing if somebody just did."""
        keys = self._named(
            "stalled",
            "wait",
            "active",
            "stalled-check",
            "meta",
            "paused",
            "marker",
            "events",
            "repeat",
        )
        return Call("moveStalledJobsToWait", keys, [_NEVER, self._all[""], now, interval])

    # -- settling ----------------------------------------------------------------------------------

    def complete(self, id_: str, token: str) -> Call:
        """A job is done: it is removed."""
        keys, arguments = self.moveToFinishedArgs(  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportGeneralTypeIssues] - untyped
            cast("Any", _Job(id_)), None, "returnvalue", True, "completed", token, False
        )
        return Call("moveToFinished", cast("Any", keys), cast("Any", arguments))

    def fail(self, id_: str, token: str, reason: str, now: int, fields: Mapping[str, str]) -> Call:
        """A job failed for good: it is kept among the failed ones."""
        keys, arguments = self.moveToFinishedArgs(  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportGeneralTypeIssues] - untyped
            cast("Any", _Job(id_)), reason, "failedReason", False, "failed", token, False, fields
        )
        made: list[Any] = list(cast("Any", arguments))
        made[1] = now
        return Call("moveToFinished", cast("Any", keys), made)

    def again(self, id_: str, token: str, now: int, fields: Mapping[str, str]) -> Call:
        """A job goes to the end of the queue, with other fields."""
        keys = self._named("active", "wait", "paused")
        keys.append(self.job_key(id_))
        keys += self._named("meta", "events", "delayed", "prioritized", "pc", "marker", "stalled")
        arguments = [self._all[""], now, "LPUSH", id_, token, _flat(fields)]
        return Call("retryJob", keys, arguments)

    def later(
        self, id_: str, token: str, now: int, delay: int, fields: Mapping[str, str] | None
    ) -> Call:
        """A job waits for its time, with other fields; without, it counts as never started."""
        keys = self._named("marker", "active", "prioritized", "delayed")
        keys.append(self.job_key(id_))
        keys += self._named("events", "meta", "stalled", "wait", "limiter", "pc")
        skip = "1" if fields is None else "0"
        packed = b"" if fields is None else _flat(fields)
        return Call(
            "moveToDelayed", keys, [self._all[""], str(now), id_, token, delay, skip, packed, "0"]
        )

    def release(self, id_: str, token: str) -> Call:
        """A job goes back to the front of the queue."""
        keys = self._named(
            "active",
            "wait",
            "stalled",
            "paused",
            "meta",
            "limiter",
            "prioritized",
            "marker",
            "events",
        )
        return Call("moveJobFromActiveToWait", keys, [id_, token, self.job_key(id_)])

    # -- looking -----------------------------------------------------------------------------------

    def counts(self, *states: str) -> Call:
        """How many jobs are in each state."""
        return Call("getCounts", [self._all[""]], states)

    def ranges(self, *states: str) -> Call:
        """The ids of all jobs in each state, sets from the lowest score on, lists reversed."""
        return Call("getRanges", [self._all[""]], [0, -1, "1", *states])

    def empty(self) -> Call:
        """Remove all jobs that nobody holds."""
        keys = self._named("wait", "paused", "delayed", "prioritized", "repeat")
        return Call("drain", keys, [self._all[""], "1"])

    def forget(self, id_: str) -> Call:
        """Remove a job, unless somebody holds it."""
        return Call("removeJob", [self.job_key(id_), self._all["repeat"]], [id_, 0, self._all[""]])


def _flat(fields: Mapping[str, str]) -> bytes:
    return _pack([part for pair in fields.items() for part in pair])
