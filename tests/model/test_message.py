"""What passes between the runtime and a transport."""

from __future__ import annotations

import pytest
from tests.support.envelopes import make_docket

from matador.model.envelope import Envelope
from matador.model.message import Message, QueueDepth, Receipt, StoredMessage


def test_the_reason_of_a_dead_letter_is_a_header() -> None:
    dead = StoredMessage("1", "id", "q", b"", {"x-matador-dead-letter-reason": "too late"})
    assert dead.reason == "too late"
    assert StoredMessage("1", "id", "q", b"").reason is None


def test_the_total_depth_is_all_that_is_not_finished() -> None:
    assert QueueDepth(ready=1, delayed=2, in_flight=4).total == 7


@pytest.mark.parametrize(
    "value",
    [Message("id", "q", b""), Receipt("q", 1), make_docket(), Envelope("1", 2, make_docket())],
    ids=lambda value: type(value).__name__,
)
def test_messages_are_frozen(value: object) -> None:
    with pytest.raises(AttributeError):
        value.id = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_no_two_dockets_share_their_metadata() -> None:
    assert make_docket().metadata is not make_docket().metadata
