"""Calls of BullMQ's own scripts as values, for a pipeline or a transaction.

The official package knows the scripts, the keys and how arguments are packed, but most of its
methods run a script at once. Here the same arguments become values (``Call``), so that many calls
travel together. Small scripts of our own take one certain job, and fail a malformed one.

BullMQ's scripts are sent with ``lua/guard.lua`` in front, so that a malformed job does not make
them fail half-way, and so that the pause of every version of BullMQ is honored. Those that settle
a job leave it with its holder if they fail all the same.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from bullmq.redis_connection import RedisConnection, loadScript
from bullmq.scripts import Scripts

from matador.model.job_limits import RateLimit
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind
from matador.transports.bullmq.wire import KEYS, id_bytes

_pack = msgspec.msgpack.encode

Argument: TypeAlias = str | int | float | bytes

Keep: TypeAlias = bool | int | dict[str, int]
"""Which jobs are kept, as ``removeOnComplete`` says it: False all, True none, or so many."""

REMOVE: Keep = True

OURS = (
    *("finish_malformed", "release_failed", "take", "take_failed"),
    *("add_plain", "take_plain", "finish_plain"),
)
SHIPPED = {"moveJobFromActiveToWait": "moveJobFromActiveToWait-9.lua"}
"""Scripts that the package ships but does not load."""

THEIRS = (
    *SHIPPED,
    "addDelayedJob",
    "addJobScheduler",
    "addParentJob",
    "addPrioritizedJob",
    "addStandardJob",
    "drain",
    "extendLock",
    "getCounts",
    "getRanges",
    "getStateV2",
    "moveStalledJobsToWait",
    "moveToActive",
    "moveToDelayed",
    "moveToFinished",
    "obliterate",
    "pause",
    "removeJob",
    "removeJobScheduler",
    "reprocessJob",
    "retryJob",
    "updateJobScheduler",
    "updateProgress",
)
_VARIANTS = {
    "removeHeldJob": "removeJob",
    "addNewDelayedJob": "addDelayedJob",
    "addNewPrioritizedJob": "addPrioritizedJob",
    "addNewStandardJob": "addStandardJob",
}
"""Scripts with something of ours in front, under another name: which ones they are."""

_FUNCTION = re.compile(
    r"^local (?:function \w+|\w+ = function) ?\(.*?^end$\n", re.MULTILINE | re.DOTALL
)
MANY = "Many"
_FOR_MANY = (
    *("addNewDelayedJob", "addNewPrioritizedJob", "addNewStandardJob"),
    *("moveToActive", "moveToFinished"),
)
"""Scripts that also handle many jobs at a time, under their names with ``MANY``."""

USED = (*OURS, *THEIRS, *_VARIANTS, *(name + MANY for name in _FOR_MANY))
"""All scripts that are called here; loaded on every new connection."""

_HARMLESS = ("extendLock", "getCounts", "getRanges", "getStateV2")  # they change no job

# Where the scripts that settle a job find the active list, the job's key, its id and the token.
_SETTLING = {
    "moveJobFromActiveToWait": ("KEYS[1]", "ARGV[3]", "ARGV[1]", "ARGV[2]"),
    "moveToDelayed": ("KEYS[2]", "KEYS[5]", "ARGV[3]", "ARGV[4]"),
    "moveToFinished": ("KEYS[2]", "KEYS[12]", "ARGV[1]", "cmsgpack.unpack(ARGV[8]).token"),
    "retryJob": ("KEYS[1]", "KEYS[4]", "ARGV[4]", "ARGV[5]"),
}
# They remove the lock before anything else: if it is gone after an error, it was ours.
_KEEP = """
local done, answer = pcall(function()
%(script)s
end)
if done then return answer end
local active, lock, id = %(active)s, %(job)s .. ':lock', %(id)s
if redis.call('EXISTS', lock) == 0 then
  redis.call('SET', lock, %(token)s, 'PX', 30000)
  if not redis.call('LPOS', active, id) then redis.call('LPUSH', active, id) end
end
error(answer, 0)
"""
# In front of removeJob, which removes nothing that is locked.
_UNLOCK = """
if redis.call('GET', KEYS[1] .. ':lock') ~= ARGV[4] then return -2 end
redis.call('DEL', KEYS[1] .. ':lock')
"""
# In front of updateProgress, which anybody may call.
_HELD = """
if redis.call('GET', KEYS[1] .. ':lock') ~= ARGV[3] then return -2 end
"""
# In front of pause. BullMQ 5 loses jobs that are not in this list when it resumes.
_PAUSED = """
if ARGV[1] == 'paused' and redis.call('EXISTS', KEYS[1]) == 1 then
  if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('RENAME', KEYS[1], KEYS[2])
  else repeat until not redis.call('RPOPLPUSH', KEYS[1], KEYS[2]) end
end
"""
# Schedulers of BullMQ 5 have no data of their own: the next job gets those of the last one.
_WITH_DATA = """
if ARGV[3] ~= '{}' and redis.call('ZSCORE', KEYS[1], ARGV[2]) then
  redis.call('HSETNX', KEYS[1] .. ':' .. ARGV[2], 'data', ARGV[3])
end
"""

# A job that fails under a Node worker is tried three times, as documented for jobs on Redis.
OPTIONS: Mapping[str, Any] = {
    "attempts": 3,
    "backoff": {"type": "exponential", "delay": 1000},
    "removeOnComplete": True,
    "removeOnFail": False,
}
LIMIT = 2**53
"""The longest time in ms, and the largest number: what a worker on Node can count."""

_NEVER = 2**31 - 1  # how often a job may stall: poison messages are handled elsewhere


class Call(NamedTuple):
    """A script with its keys and arguments.

    ``alike``: calls of one script with the same text here differ in their arguments only, and in
    the key at ``place``, which is that of the job; they can be made together.
    """

    script: str
    keys: Sequence[str | bytes]
    arguments: Sequence[Argument]
    alike: str = ""
    place: int = -1


def together(calls: Sequence[Call], *, stops: bool = False) -> Call:
    """One call for several that are alike; it answers with a list.

    ``stops``: the first one that finds nothing is the last.
    """
    first = calls[0]
    place, width = first.place, len(first.arguments) + 1
    parts: list[bytes] = []
    for _, keys, arguments, _, _ in calls:
        parts.append(_bytes(keys[place]) if place >= 0 else b"")
        parts += [one if type(one) is bytes else _bytes(one) for one in arguments]
    # Not packed: the server's reader of that format knows no bytes.
    lengths = _pack(list(map(len, parts)))
    packed: list[Argument] = [place + 1, int(stops), width, lengths, b"".join(parts)]
    return Call(first.script + MANY, first.keys, packed)


def _bytes(argument: Argument) -> bytes:
    """As the server would hand it to a script."""
    if isinstance(argument, bytes):
        return argument
    return (argument if isinstance(argument, str) else str(argument)).encode()


@cache
def our_script(name: str) -> str:
    """The text of one of our own scripts."""
    text = (files("matador.transports.bullmq") / "lua" / f"{name}.lua").read_text("utf-8")
    return text.replace("@KEYS@", ", ".join(f"['{key}'] = true" for key in KEYS))


@cache
def guarded(name: str, script: str) -> str:
    """A script of BullMQ as it is sent to the server."""
    if name in _HARMLESS:
        return script
    return _guard() + _prepared(name, script)


@cache
def for_many(name: str, script: str) -> str:
    """A script of BullMQ that handles many jobs at a time.

    Its functions are made once, and not for each job: a tenth of what the server has to do.
    """
    functions, rest = apart(script)
    one = f"local function one()\n{_prepared(name, rest)}\nend\n"
    guard = _guard(many=True)
    return "local KEYS, ARGV = KEYS, ARGV\n" + guard + functions + one + our_script("many")


def apart(script: str) -> tuple[str, str]:
    """The functions of a script of BullMQ, and the rest. They share nothing but ``rcall``."""
    functions = _FUNCTION.findall(script)
    return "".join(["local rcall = redis.call\n", *functions]), _FUNCTION.sub("", script)


def _guard(*, many: bool = False) -> str:
    return our_script("guard").replace("@MANY@", "true" if many else "false")


def _prepared(name: str, script: str) -> str:
    if name in _SETTLING:
        active, job, id_, token = _SETTLING[name]
        found = {"script": script, "active": active, "job": job, "id": id_, "token": token}
        script = _KEEP % found
    return _in_front(name) + script


def _in_front(name: str) -> str:
    if name.startswith("addNew"):
        return our_script("add_new")
    if name == "reprocessJob":
        return our_script("retry_failed")
    return {
        "pause": _PAUSED,
        "removeHeldJob": _UNLOCK,
        "updateJobScheduler": _WITH_DATA,
        "updateProgress": _HELD,
    }.get(name, "")


def load_more(connection: Any) -> None:
    """Register our own scripts, and those that the package leaves out, with its connection."""
    client, commands = connection.conn, connection.commands
    for name in OURS:
        commands[name] = client.register_script(our_script(name))
    scripts = {
        name: loadScript(SHIPPED[name]) if name in SHIPPED else commands[name].script
        for name in THEIRS
    }
    for name in (*THEIRS, *_VARIANTS):
        script = scripts[_VARIANTS.get(name, name)]
        commands[name] = client.register_script(guarded(name, script))
        if name in _FOR_MANY:
            commands[name + MANY] = client.register_script(for_many(name, script))


def connection_of(client: Any) -> Any:
    """The package's connection around a client, with all scripts registered."""
    connection: Any = RedisConnection(client)
    load_more(connection)
    return connection


class _AnyJob:
    """As much of a job as the package's ``moveToFinishedArgs`` reads."""

    def __init__(self) -> None:
        self.id = ""
        self.opts: dict[str, Any] = {}
        self.attempts, self.attemptsMade = 1, 0
        self.queue = self


class JobScripts(Scripts):
    """The calls for one queue. Times are in milliseconds."""

    def __init__(self, prefix: str, name: str, connection: Any) -> None:
        super().__init__(prefix, name, connection)
        self._all: dict[str, str] = cast("Any", self).keys
        self._bytes = {name: key.encode() for name, key in self._all.items()}
        self._lists: dict[str, list[str | bytes]] = {}

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
        """Release the jobs of dead workers; does nothing if somebody just did."""
        keys = self._named("stalled wait active stalled-check meta paused marker events repeat")
        return Call("moveStalledJobsToWait", keys, [_NEVER, self._all[""], now, interval])

    # -- settling ----------------------------------------------------------------------------------

    def complete(self, id_: str, token: str, keep: Keep = REMOVE) -> Call:
        """Complete a job: it is removed, or kept as its sender asked."""
        return self._finish(id_, token, None, "returnvalue", keep, "completed", None)

    def fail(self, id_: str, token: str, reason: str, now: int, fields: Mapping[str, str]) -> Call:
        """Fail a job for good: it is kept among the failed ones."""
        return self._finish(id_, token, reason, "failedReason", False, "failed", (now, fields))

    def _finish(
        self,
        id_: str,
        token: str,
        value: str | None,
        field: str,
        keep: Keep,
        target: str,
        more: tuple[int, Mapping[str, str]] | None,
    ) -> Call:
        found, packed = self.moveToFinishedArgs(  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportGeneralTypeIssues] - untyped
            cast("Any", _AnyJob()), value, field, keep, target, token, False
        )
        keys, arguments = list(cast("Any", found)), list(cast("Any", packed))
        keys[11], arguments[0] = self.job_key(id_), id_bytes(id_)
        if more is not None:
            arguments[1] = more[0]
            arguments.append(flat(more[1]))
        return Call("moveToFinished", keys, arguments)

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

    # -- looking -----------------------------------------------------------------------------------

    def counts(self, *states: str) -> Call:
        """How many jobs are in each state."""
        return Call("getCounts", [self._all[""]], states)

    def ranges(self, *states: str) -> Call:
        """The ids of all jobs in each state, sets from the lowest score on, lists reversed."""
        return Call("getRanges", [self._all[""]], [0, -1, "1", *states])

    def drain_waiting(self) -> Call:
        """Remove all jobs that nobody holds."""
        keys = self._named("wait paused delayed prioritized repeat")
        return Call("drain", keys, [self._all[""], "1"])

    def remove_failed(self, id_: str) -> Call:
        """Remove a failed job, unless somebody holds it."""
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
