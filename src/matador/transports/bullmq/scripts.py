"""The scripts that run on the server: which there are, and how their texts are made.

The official package knows the scripts, the keys and how arguments are packed, but most of its
methods run a script at once. Here a call is a value (``Call``), so that many travel together, in a
pipeline or a transaction. Small scripts of our own take one certain job, and fail a malformed one.

BullMQ's scripts are sent with ``lua/guard.lua`` in front, so that a malformed job does not make
them fail half-way, and so that the pause of every version of BullMQ is honored. Those that settle
a job leave it with its holder if they fail all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import msgspec
from bullmq.redis_connection import RedisConnection, loadScript

from matador.transports.bullmq.wire import KEYS

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
# In front of updateProgress, which does not check the lock.
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

LIMIT = 2**53
"""The longest time in ms, and the largest number: what a worker on Node can count."""


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
