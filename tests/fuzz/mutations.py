"""Ways to spoil a message. Everything is drawn from the ``Random`` given: a seed repeats a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec
from tests.fuzz.corpus import CORPUS, Sample

Mutation = Callable[[Sample, Random], Sample]

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**64 - 1,
    1.5,
    1e308,
    "",
    "x",
    "\x00",
    "é漢😀",
    "2026-11-15T19:02:37.435Z",
    "2026-11-15T19:02:37",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "can-ignore",
    "x" * 5000,
    [],
    [1],
    {},
    {"a": 1},
    {"": {"": []}},
]
PIECES: list[bytes] = [
    b"\x00",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\udc00\\ud800",
    b"\\u0000",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"9" * 400,
    b"9" * 5000,
    b"[" * 2000,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' * 2000,
    b"\x91" * 2000,
    b"\x81\xa1a" * 2000,
    b"\xc1",
    b"\xd4\x05\x00",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"null",
    b"{}",
    b'"',
    b",",
    b"\xef\xbb\xbf",
]
HEADER_VALUES: list[Any] = [
    *VALUES,
    b"\xff",
    "\ud800",
    10**4000,
    "9" * 5000,
    float("nan"),
    float("inf"),
]


def _place(body: bytes, random: Random) -> int:
    return random.randrange(len(body) + 1)


def flip_bits(sample: Sample, random: Random) -> Sample:
    body = bytearray(sample.body)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        if body:
            body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    return sample._replace(body=bytes(body))


def truncate(sample: Sample, random: Random) -> Sample:
    at = _place(sample.body, random)
    return sample._replace(body=sample.body[:at] if random.random() < 0.8 else sample.body[at:])


def splice(sample: Sample, random: Random) -> Sample:
    other = random.choice(CORPUS)
    start, end = _place(sample.body, random), _place(other.body, random)
    return sample._replace(body=sample.body[:start] + other.body[end:])


def repeat(sample: Sample, random: Random) -> Sample:
    start, end = sorted((_place(sample.body, random), _place(sample.body, random)))
    return sample._replace(body=sample.body[:end] + sample.body[start:])


def cut_out(sample: Sample, random: Random) -> Sample:
    start, end = sorted((_place(sample.body, random), _place(sample.body, random)))
    return sample._replace(body=sample.body[:start] + sample.body[end:])


def insert(sample: Sample, random: Random) -> Sample:
    at = _place(sample.body, random)
    piece = random.choice(PIECES) if random.random() < 0.8 else random.randbytes(4)
    skip = random.choice((0, 0, len(piece)))
    return sample._replace(body=sample.body[:at] + piece + sample.body[at + skip :])


def replace_value(sample: Sample, random: Random) -> Sample:
    """Puts a piece of raw text in the place of one value of a JSON body."""
    starts = [at + 1 for at, byte in enumerate(sample.body) if byte in b":[,"]
    if not starts:
        return insert(sample, random)
    start = random.choice(starts)
    end = start
    while end < len(sample.body) and sample.body[end] not in b",]}":
        end += 1
    piece = random.choice(PIECES)
    return sample._replace(body=sample.body[:start] + piece + sample.body[end:])


def swap_fields(sample: Sample, random: Random) -> Sample:
    """Changes fields of the message as data: another type, gone, renamed, moved."""
    packed = "msgpack" in sample.codec
    read = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        message: Any = read(sample.body)
    except (ValueError, RecursionError):
        return insert(sample, random)  # compressed, or spoiled before
    for _ in range(random.choice((1, 1, 2, 4))):
        message = _changed(message, random)
    try:
        body = msgspec.msgpack.encode(message) if packed else msgspec.json.encode(message)
    except (OverflowError, ValueError, TypeError, RecursionError):
        return insert(sample, random)
    return sample._replace(body=body)


def _changed(value: Any, random: Random) -> Any:
    if not isinstance(value, dict) or not value or random.random() < 0.05:
        return random.choice(VALUES)
    fields: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType] - any
    key = random.choice(list(fields))
    match random.randrange(6):
        case 0:
            del fields[key]
        case 1:
            fields[random.choice(("payload", "key", "targetSubscriber", "", "x" * 300))] = fields[
                key
            ]
        case 2:
            fields[key] = random.choice(VALUES)
        case _:
            fields[key] = _changed(fields[key], random)
    return fields


def double_key(sample: Sample, random: Random) -> Sample:
    """Writes one field of a JSON object twice."""
    try:
        fields: Any = json.loads(sample.body)
    except (ValueError, RecursionError):
        return repeat(sample, random)
    if not isinstance(fields, dict) or not fields:
        return repeat(sample, random)
    known = cast("dict[str, Any]", fields)
    key = random.choice(list(known))
    again = json.dumps({key: random.choice((known[key], random.choice(VALUES)))})[:-1]
    return sample._replace(body=again.encode("utf-8", "surrogatepass") + b"," + sample.body[1:])


def spoil_headers(sample: Sample, random: Random) -> Sample:
    headers = dict(sample.headers)
    names = [*headers, "x-matador-scheduled-for", "x-event-id", "content-encoding"]
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(names)
        if random.random() < 0.3:
            headers.pop(name, None)
        else:
            headers[name] = random.choice(HEADER_VALUES)
    return sample._replace(headers=headers)


def other_codec(sample: Sample, random: Random) -> Sample:
    """Hands the message to a codec that did not write it."""
    return sample._replace(codec=random.choice(CORPUS).codec)


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    truncate,
    splice,
    repeat,
    cut_out,
    insert,
    replace_value,
    swap_fields,
    swap_fields,
    double_key,
    spoil_headers,
    other_codec,
)


def mutate(sample: Sample, random: Random) -> tuple[Sample, list[str]]:
    """The sample with one to three mutations, and their names."""
    names: list[str] = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        mutation = random.choice(MUTATIONS)
        sample = mutation(sample, random)
        names.append(mutation.__name__)
    return sample, names
