"""What a fuzz run is aimed at.

A target is a context manager that gives a function: it takes a sample, returns the name of the
outcome, and raises whatever nobody should ever see. Setting up and tearing down (an application, a
database, an event loop) belongs into the context manager.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from tests.fuzz.corpus import Sample
from tests.support.envelopes import CODECS, STAMP
from tests.support.payloads import KINDS

from matador.codec.json_text import find_duplicate_key
from matador.errors import AmbiguousPayloadError, DecodeError, InvalidEventError

Try: TypeAlias = Callable[[Sample], str]
Target: TypeAlias = Callable[[], AbstractContextManager[Try]]

EVENTS = {kind.event.key: kind.event for kind in KINDS.values()}


def try_codec(sample: Sample) -> str:
    """All that a worker does with the bytes of one message, up to its callback.

    What was decoded must also be writable again: a worker that could not write a message back
    could neither retry it nor keep it among the dead letters.
    """
    codec = CODECS[sample.codec]
    try:
        envelope = codec.decode(sample.body, sample.headers, STAMP)
    except DecodeError as error:
        return "duplicate key" if "duplicate key" in str(error) else "not an envelope"
    again = codec.encode(envelope)
    if codec.decode(again.body, again.headers, STAMP).id != envelope.id:
        raise AssertionError("written again, it is another message")
    event = EVENTS.get(envelope.docket.event_key)
    if event is None:
        return "unknown event"
    try:
        codec.decode_payload(event, envelope.data)
        if envelope.before is not None:
            codec.decode_payload(event, envelope.before)
    except AmbiguousPayloadError:
        return "duplicate key"
    except InvalidEventError:
        return "invalid payload"
    if sample.codec in ("json", "headers") and find_duplicate_key(sample.body) is not None:
        raise AssertionError("delivered, though it has a key twice")
    return "delivered"


@contextmanager
def codecs() -> Generator[Try]:
    """The codecs alone."""
    yield try_codec
