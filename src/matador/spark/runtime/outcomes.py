"""The outcomes of an attempt, and what each is called where it is counted."""

from __future__ import annotations

from typing import Final, NamedTuple

from matador.observe.journal.records import Outcome
from matador.policy.retry import Decision, Discard, RetryLater, SendToDeadLetters


class OutcomeNames(NamedTuple):
    """The name of an outcome in counts of attempts, and in counts of messages."""

    attempts: str
    messages: str


OUTCOMES: Final[dict[Outcome, OutcomeNames]] = {
    "success": OutcomeNames("successes", "handled"),
    "retry": OutcomeNames("retries", "retried"),
    "dead-letter": OutcomeNames("dead_letters", "dead_lettered"),
    "discard": OutcomeNames("discards", "discarded"),
}


def outcome_of(decision: Decision | None) -> Outcome:
    """The outcome of an attempt, by what was decided after its failure; None: it did not fail."""
    match decision:
        case None:
            return "success"
        case RetryLater():
            return "retry"
        case SendToDeadLetters():
            return "dead-letter"
        case Discard():
            return "discard"
