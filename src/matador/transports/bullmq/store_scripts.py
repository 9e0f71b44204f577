"""Calls of BullMQ's scripts for job queues: what jobs need beyond messages. Times are in ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from matador.transports.bullmq.native import LAST, NewJob
from matador.transports.bullmq.scripts import Argument, Call, JobScripts, Keep, flat
from matador.transports.bullmq.wire import id_bytes

_pack = msgspec.msgpack.encode

TAKEN, NEEDS_PRIORITY = -101, -102
"""What ``add_new`` answers if nothing was added."""

BELONGS_TO_SCHEDULE = -8
"""What ``remove`` answers for the next job of a schedule."""

_METRICS = 20_160
"""How many minutes BullMQ's own metrics go back: two weeks, the longest of its constants."""

_MOST_REMOVED = 1000  # at once: the server does nothing else meanwhile

Ended = Literal["completed", "failed"]
_ENDS: dict[Ended, tuple[bytes, bytes]] = {
    "completed": (b"returnvalue", b"completed"),
    "failed": (b"failedReason", b"failed"),
}


class StoreScripts(JobScripts):
    """The calls for one queue."""

    def __init__(self, prefix: str, name: str, connection: Any) -> None:
        super().__init__(prefix, name, connection)
        self._ends: dict[Ended, tuple[list[str | bytes], list[str | bytes]]] = {
            ended: (
                self._named(
                    f"wait active prioritized events stalled limiter delayed paused meta pc {ended}"
                ),
                [self._bytes[""] + f"metrics:{ended}".encode(), self._bytes["marker"]],
            )
            for ended in ("completed", "failed")
        }

    # -- adding ------------------------------------------------------------------------------------

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
    ) -> Call:
        """Complete a job with its result, or fail it with a reason, and keep it as it asked."""
        before, after = self._ends[ended]
        options = {
            "token": token,
            "keepJobs": _kept(keep),
            "attempts": attempts,
            "maxMetricsSize": _METRICS,
        }
        field, end = _ENDS[ended]
        arguments: list[Argument] = [
            *(id_bytes(id_), now, field, value, end, b"", self._bytes[""], _pack(options))
        ]
        if fields:
            arguments.append(flat(fields))
        keys = [*before, self.job_key(id_), *after]
        return Call("moveToFinished", keys, arguments, self._all[ended], len(before))

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
        """Remove a job that nobody holds, with its children, as BullMQ does."""
        keys = [self.job_key(id_), self._bytes["repeat"]]
        return Call("removeJob", keys, [id_bytes(id_), "1", self._bytes[""]])

    # -- the whole queue ---------------------------------------------------------------------------

    def range(self, states: Sequence[str], last: int, *, ascending: bool) -> Call:
        """The ids of the first jobs in each state. Lists come reversed if it is ascending."""
        return Call("getRanges", [self._all[""]], [0, last, "1" if ascending else "0", *states])

    def pause_queue(self) -> Call:
        """Have no worker take a job."""
        return Call("pause", self._named(f"wait paused {_PAUSE}"), ["paused"])

    def resume_queue(self) -> Call:
        """End a pause; answers how many jobs are left to be moved by another call."""
        return Call("pause", self._named(f"paused wait {_PAUSE}"), ["resumed"])

    def delete_some(self) -> Call:
        """Delete some jobs of a paused queue, active ones too; answers 1 until all is gone."""
        return Call("obliterate", [*self._named("meta"), self._all[""]], [_MOST_REMOVED, "force"])

    # -- schedulers --------------------------------------------------------------------------------

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


_PAUSE = "meta prioritized events delayed marker"


def _kept(keep: Keep) -> Mapping[str, int]:
    if isinstance(keep, dict):
        return keep
    if isinstance(keep, bool):
        return _NOTHING if keep else _ALL
    return {"count": keep}


_NOTHING, _ALL = {"count": 0}, {"count": -1}
