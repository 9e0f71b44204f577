"""Calls of BullMQ's scripts for one queue, as values. Times are in milliseconds."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from bullmq.scripts import Scripts

from matador.model.job_limits import RateLimit
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind
from matador.transports.bullmq.native import LAST, NewJob
from matador.transports.bullmq.scripts import REMOVE, Argument, Call, Keep
from matador.transports.bullmq.wire import id_bytes

_pack = msgspec.msgpack.encode

# A job that fails under a Node worker is tried three times, as documented for jobs on Redis.
OPTIONS: Mapping[str, Any] = {
    "attempts": 3,
    "backoff": {"type": "exponential", "delay": 1000},
    "removeOnComplete": True,
    "removeOnFail": False,
}

TAKEN, NEEDS_PRIORITY = -101, -102
"""What the script of ``add_new`` answers if it added nothing."""

BELONGS_TO_SCHEDULE = -8
"""What the script of ``remove_job`` answers for the next job of a schedule."""

_METRICS = 20_160
"""How many minutes BullMQ's own metrics go back: two weeks, the longest of its constants."""

_MOST_REMOVED = 1000  # at once: the server does nothing else meanwhile

Ended = Literal["completed", "failed"]
_ENDS: dict[Ended, tuple[bytes, bytes]] = {
    "completed": (b"returnvalue", b"completed"),
    "failed": (b"failedReason", b"failed"),
}
_KEEP_NOTHING, _KEEP_ALL = {"count": 0}, {"count": -1}
_PAUSE = "meta prioritized events delayed marker"
_NEVER = 2**31 - 1  # how often a job may stall: poison messages are handled elsewhere


class QueueScripts(Scripts):
    """The calls for one queue. Times are in milliseconds."""

    def __init__(self, prefix: str, name: str, connection: Any) -> None:
        super().__init__(prefix, name, connection)
        self._all: dict[str, str] = cast("Any", self).keys
        self._bytes = {name: key.encode() for name, key in self._all.items()}
        self._lists: dict[str, list[str | bytes]] = {}
        self._ends: dict[Ended, tuple[list[str | bytes], list[str | bytes]]] = {
            ended: (
                self._named(
                    f"wait active prioritized events stalled limiter delayed paused meta pc {ended}"
                ),
                [self._bytes[""] + f"metrics:{ended}".encode(), self._bytes["marker"]],
            )
            for ended in ("completed", "failed")
        }

    def key(self, name: str) -> str:
        """The key of a part of the queue."""
        return self._all[name]

    def job_key(self, id_: str) -> bytes:
        """The key of a job."""
        return self._bytes[""] + id_bytes(id_)

    def lock_key(self, id_: str) -> bytes:
        """The key of a job's lock."""
        return self.job_key(id_) + b":lock"

    @property
    def worker_name(self) -> str:
        """The name of the connection on which a worker waits: BullMQ counts workers by it."""
        prefix, _, name = self._all[""].removesuffix(":").rpartition(":")
        return f"{prefix}:{b64encode(name.encode()).decode()}"

    @property
    def start(self) -> bytes:
        """What the keys of the queue begin with."""
        return self._bytes[""]

    def keys_of(self, names: str) -> Sequence[str | bytes]:
        """The keys of parts of the queue."""
        # Bytes are not encoded at every call, and each list is made once.
        found = self._lists.get(names)
        if found is None:
            found = self._lists[names] = [self._bytes[name] for name in names.split()]
        return found

    def _named(self, names: str) -> list[str | bytes]:
        return [*self.keys_of(names)]

    # -- adding ------------------------------------------------------------------------------------

    def add(
        self,
        id_: str,
        name: str,
        data: str | bytes,
        now: int,
        *,
        delay: int,
        priority: int,
        options: Mapping[str, Any] = OPTIONS,
        unique: str | None = None,
        parent: str | None = None,
    ) -> Call:
        """Add a job; BullMQ ignores one whose id, or whose unique key, is taken.

        ``parent``: the id of the job that waits for it, and that fails with it.
        """
        options = {**options, "delay": delay}
        if id_:
            options["jobId"] = id_
        if priority:
            options["priority"] = priority
        key = None if unique is None else f"{self._all['']}de:{unique}"
        # As the package packs them, but with data that are JSON already, so that no byte changes.
        parents: list[Any] = [None, None, None]
        if parent is not None:
            queue = self._all[""][:-1]
            options |= {"fpof": True, "parent": {"id": parent, "queue": queue}}
            parents = [f"{queue}:{parent}", f"{queue}:{parent}:dependencies"]
            parents.append({"id": parent, "queueKey": queue, "fpof": True})
        packed = _pack([self._all[""], id_, name, now, *parents, None, key])
        arguments: list[Argument] = [packed, data, _pack(options)]
        if delay:
            keys = self._named("marker meta id delayed completed events")
            return Call("addDelayedJob", keys, [*arguments, delay])
        if priority:
            keys = self._named("marker meta id prioritized delayed completed active events pc")
            return Call("addPrioritizedJob", keys, [*arguments, priority])
        keys = self._named("wait paused meta id completed delayed active events marker")
        return Call("addStandardJob", keys, [*arguments, now])

    def add_job(self, id_: str, job: NewJob, now: int, parent: str | None = None) -> Call:
        """Add a job; BullMQ ignores one whose id, or whose unique key, is taken."""
        return self.add(
            id_,
            job.name,
            job.data,
            now,
            delay=job.delay,
            priority=job.priority,
            options=job.options,
            unique=job.unique,
            parent=parent,
        )

    def add_to_flow(
        self, id_: str, job: NewJob, now: int, *, parent: str | None, waits: bool
    ) -> Call:
        """Add a job of a flow, after the one that waits for it. ``waits``: for others itself."""
        call = self.add_job(id_, job, now, parent)
        if not waits:
            return call
        keys = self._named("meta id delayed waiting-children completed events")
        return Call("addParentJob", keys, call.arguments[:3])

    def add_new(self, id_: str, job: NewJob, now: int) -> Call:
        """Add a job; answers its id, that of another one with its unique key, or why not."""
        script, keys, arguments, *_ = self.add_job(id_, job, now)
        more = self._named("wait paused prioritized pc meta")
        return Call(
            script.replace("add", "addNew"),
            [*keys, self.job_key(id_), *more],
            [*arguments, self._bytes[""], LAST, job.priority],
            self._all[""],
            len(keys),
        )

    # -- taking ------------------------------------------------------------------------------------

    def next_job(self, token: str, now: int, lock: int, rate: RateLimit | None = None) -> Call:
        """Take the next job that is due. All workers count for the rate limit of their queue."""
        keys = self._named(
            "wait active prioritized events stalled limiter delayed paused meta pc marker"
        )
        limiter = None if rate is None else {"max": rate.max, "duration": rate.milliseconds}
        options = _pack({"token": token, "lockDuration": lock, "limiter": limiter})
        return Call("moveToActive", keys, [self._all[""], now, options])

    def take(self, id_: str, token: str, now: int, lock: int) -> Call:
        """Take a certain job that waits."""
        keys = self._named("wait active prioritized delayed events paused")
        keys += [self.job_key(id_), self.lock_key(id_)]
        return Call("take", keys, [id_bytes(id_), token, lock, now])

    def take_failed(
        self, kind: DeadLetterKind, token: str, lock: int, most: int, ids: Sequence[str] = ()
    ) -> Call:
        """Hold failed jobs of a kind: these, or the oldest."""
        others = [other for other in DEAD_LETTER_KINDS if other != kind]
        named = f",{','.join(others)}," if kind == "undeliverable" else ""
        arguments = [self._all[""], kind, named, most, lock, token, *map(id_bytes, ids)]
        return Call("take_failed", [self._all["failed"]], arguments)

    def extend(self, id_: str, token: str, lock: int) -> Call:
        """Hold a job for longer."""
        keys = [self.lock_key(id_), self._bytes["stalled"]]
        return Call("extendLock", keys, [token, lock, id_bytes(id_)])

    def release_stalled(self, now: int, interval: int) -> Call:
        """Release the jobs of dead workers, unless another worker has just done that."""
        keys = self._named("stalled wait active stalled-check meta paused marker events repeat")
        return Call("moveStalledJobsToWait", keys, [_NEVER, self._all[""], now, interval])

    # -- settling ----------------------------------------------------------------------------------

    def finish(
        self,
        id_: str,
        token: str,
        now: int,
        ended: Ended,
        value: bytes,
        *,
        keep: Keep,
        attempts: int = 1,
        fields: Mapping[str, str] | None = None,
        metrics: bool = True,
    ) -> Call:
        """Complete a job with its result, or fail it with a reason, and keep it as it asked.

        ``metrics``: BullMQ counts it. Jobs of messages are not counted.
        """
        before, after = self._ends[ended]
        options = {
            "token": token,
            "keepJobs": _kept(keep),
            "attempts": attempts,
            "maxMetricsSize": _METRICS if metrics else "",
        }
        field, end = _ENDS[ended]
        arguments: list[Argument] = [
            *(id_bytes(id_), now, field, value, end, b"", self._bytes[""], _pack(options))
        ]
        if fields:
            arguments.append(flat(fields))
        keys = [*before, self.job_key(id_), *after]
        if not metrics:
            return Call("moveToFinished", keys, arguments)
        return Call("moveToFinished", keys, arguments, self._all[ended], len(before))

    def complete(self, id_: str, token: str, now: int, keep: Keep = REMOVE) -> Call:
        """Complete the job of a message: it is removed, or kept as its sender asked."""
        return self.finish(id_, token, now, "completed", b"null", keep=keep, metrics=False)

    def fail(self, id_: str, token: str, reason: str, now: int, fields: Mapping[str, str]) -> Call:
        """Fail the job of a message for good: it is kept among the failed ones."""
        value = reason.encode()
        return self.finish(
            id_, token, now, "failed", value, keep=False, fields=fields, metrics=False
        )

    def complete_malformed(self, id_: str, token: str, now: int) -> Call:
        """Complete a malformed job."""
        return self._malformed(id_, token, now)

    def fail_malformed(
        self, id_: str, token: str, reason: str, now: int, kind: DeadLetterKind, bare: bool
    ) -> Call:
        """Fail a malformed job for good."""
        return self._malformed(id_, token, now, kind, reason, "1" if bare else "")

    def _malformed(self, id_: str, token: str, now: int, *more: str) -> Call:
        keys = self._named("active failed stalled events")
        keys += [self.job_key(id_), self.lock_key(id_)]
        return Call("finish_malformed", keys, [id_bytes(id_), token, now, *more])

    def retry(self, id_: str, token: str, now: int, fields: Mapping[str, str]) -> Call:
        """Put a job at the end of the queue, with other fields."""
        keys = self._named("active wait paused")
        keys.append(self.job_key(id_))
        keys += self._named("meta events delayed prioritized pc marker stalled")
        arguments = [self._all[""], now, "LPUSH", id_bytes(id_), token, flat(fields)]
        return Call("retryJob", keys, arguments)

    def delay(
        self, id_: str, token: str, now: int, delay: int, fields: Mapping[str, str] | None
    ) -> Call:
        """Delay a job, with other fields; without fields it counts as never started."""
        keys = self._named("marker active prioritized delayed")
        keys.append(self.job_key(id_))
        keys += self._named("events meta stalled wait limiter pc")
        skip = "1" if fields is None else "0"
        packed = b"" if fields is None else flat(fields)
        where = [self._all[""], str(now), id_bytes(id_), token]
        return Call("moveToDelayed", keys, [*where, delay, skip, packed, "0"])

    def release(self, id_: str, token: str) -> Call:
        """Put a job back at the front of the queue."""
        keys = self._named("active wait stalled paused meta limiter prioritized marker events")
        arguments = [id_bytes(id_), token, self.job_key(id_)]
        return Call("moveJobFromActiveToWait", keys, arguments)

    def progress(self, id_: str, token: str, progress: bytes) -> Call:
        """Note how far a job has come, while it is held."""
        keys = [self.job_key(id_), *self._named("events meta")]
        return Call("updateProgress", keys, [id_bytes(id_), progress, token])

    # -- one job -----------------------------------------------------------------------------------

    def state(self, id_: str) -> Call:
        """What BullMQ calls the state of a job."""
        keys = self._named(
            "completed failed delayed active wait paused waiting-children prioritized"
        )
        return Call("getStateV2", keys, [id_bytes(id_), self.job_key(id_)])

    def retry_failed(self, id_: str) -> Call:
        """Make a failed job wait again, as if it had never run."""
        keys = [self.job_key(id_)]
        keys += self._named("events failed wait meta active marker prioritized pc")
        arguments: list[Argument] = [id_bytes(id_), "LPUSH", "failedReason", "failed", "1", "1"]
        return Call("reprocessJob", keys, arguments)

    def remove_job(self, id_: str) -> Call:
        """Remove a job that no worker holds, with its children, as BullMQ does."""
        keys = [self.job_key(id_), self._bytes["repeat"]]
        return Call("removeJob", keys, [id_bytes(id_), "1", self._bytes[""]])

    # -- the whole queue ---------------------------------------------------------------------------

    def range(self, states: Sequence[str], last: int, *, ascending: bool) -> Call:
        """The ids of the first jobs in each state. Lists come reversed if it is ascending."""
        return Call("getRanges", [self._all[""]], [0, last, "1" if ascending else "0", *states])

    def pause_queue(self) -> Call:
        """Pause the queue: no worker takes a job."""
        return Call("pause", self._named(f"wait paused {_PAUSE}"), ["paused"])

    def resume_queue(self) -> Call:
        """End a pause; answers how many jobs are left to be moved by another call."""
        return Call("pause", self._named(f"paused wait {_PAUSE}"), ["resumed"])

    def delete_some(self) -> Call:
        """Delete some jobs of a paused queue, active ones too; answers 1 until all is gone."""
        return Call("obliterate", [*self._named("meta"), self._all[""]], [_MOST_REMOVED, "force"])

    # -- schedulers --------------------------------------------------------------------------------

    def next_iteration(
        self, scheduler: str, id_: str, data: bytes, at: int, now: int, options: Mapping[str, Any]
    ) -> Call:
        """Add the next job of a scheduler whose job was taken; once for each job."""
        keys = self._named("repeat delayed wait paused meta prioritized marker id events pc")
        keys += [self.job_key(id_), self._bytes["active"]]
        packed = _pack(self.encodeOpts(dict(options)))  # pyright: ignore[reportUnknownMemberType] - untyped
        arguments = [at, scheduler, data, packed, now, self._all[""], id_bytes(id_)]
        return Call("updateJobScheduler", keys, arguments)

    def add_scheduler(
        self,
        scheduler: str,
        at: int,
        data: bytes,
        template: Mapping[str, Any],
        settings: Mapping[str, Any],
        options: Mapping[str, Any],
        now: int,
    ) -> Call:
        """Make a scheduler, or change it, and add its next job."""
        keys = self._named("repeat delayed wait paused meta prioritized marker id events pc active")
        packed = [_pack(self.encodeOpts(dict(found))) for found in (template, options)]  # pyright: ignore[reportUnknownMemberType] - untyped
        arguments: list[Argument] = [at, _pack(settings), scheduler, data, *packed, now]
        return Call("addJobScheduler", keys, [*arguments, self._all[""], ""])

    def remove_scheduler(self, scheduler: str) -> Call:
        """Remove a scheduler with its next job; answers 1 if there is none."""
        keys = self._named("repeat delayed events")
        return Call("removeJobScheduler", keys, [scheduler, self._all[""]])

    # -- looking -----------------------------------------------------------------------------------

    def counts(self, *states: str) -> Call:
        """How many jobs are in each state."""
        return Call("getCounts", [self._all[""]], states)

    def ranges(self, *states: str) -> Call:
        """The ids of all jobs in each state, sets from the lowest score on, lists reversed."""
        return Call("getRanges", [self._all[""]], [0, -1, "1", *states])

    def drain_waiting(self) -> Call:
        """Remove all jobs that no worker holds."""
        keys = self._named("wait paused delayed prioritized repeat")
        return Call("drain", keys, [self._all[""], "1"])

    def remove_failed(self, id_: str) -> Call:
        """Remove a failed job, unless a worker holds it."""
        return Call("removeJob", self._failed(id_), [id_bytes(id_), 0, self._all[""]])

    def _failed(self, id_: str) -> list[str | bytes]:
        # BullMQ refuses to remove the present job of a scheduler, because that would stop it. A
        # failed one does not keep it going: this names a key without schedulers.
        return [self.job_key(id_), self._bytes[""] + b"-"]

    # -- failed jobs that are held -----------------------------------------------------------------

    def remove_held(self, id_: str, token: str) -> Call:
        """Remove a failed job that is held with this token."""
        arguments = [id_bytes(id_), 0, self._all[""], token]
        return Call("removeHeldJob", self._failed(id_), arguments)

    def release_failed(self, id_: str, token: str) -> Call:
        """Release a failed job, as if it had not been delivered."""
        return Call("release_failed", [self.job_key(id_), self.lock_key(id_)], [token])


def flat(fields: Mapping[str, str]) -> bytes:
    """Fields of a job, as scripts take them."""
    return _pack([part for pair in fields.items() for part in pair])


def _kept(keep: Keep) -> Mapping[str, int]:
    if isinstance(keep, dict):
        return keep
    if isinstance(keep, bool):
        return _KEEP_NOTHING if keep else _KEEP_ALL
    return {"count": keep}
