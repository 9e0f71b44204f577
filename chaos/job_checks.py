"""What must hold of jobs beyond the five numbers of the checker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from chaos.checker import History, Stored
from chaos.facts import Start
from chaos.profiles import JOB


def job_troubles(
    history: History,
    *,
    doomed: set[int],
    failed: Iterable[Stored],
    completed: set[str] | None,
    twofold: frozenset[int] = frozenset(),
) -> Iterator[str]:
    """What is wrong with the jobs of a run, one line each.

    Every job is done or failed, and not both; failed ones have a reason; every attempt that a kill
    has ended is counted.

    Args:
        history: of the run.
        doomed: the numbers of the jobs that cannot but fail.
        failed: the failed jobs that the provider has.
        completed: the ids of the completed jobs that it has; None: it keeps none.
        twofold: the processes that were killed, where a retry takes two steps: the job may be there
            twice then, before and after the attempt that failed, and each copy counts its own.
    """
    with_reason = {one.id: one.reason for one in failed}
    for (seq, _), sent in history.sent.items():
        done = bool(history.completed[seq, JOB])
        reason = with_reason.get(sent.id, "")
        if seq in doomed and sent.id not in with_reason:
            yield f"job {seq} cannot but fail, and is not among the failed ones"
        elif seq in doomed and "doomed" not in (reason or ""):
            yield f"job {seq} failed without its reason: {reason!r}"
        elif seq not in doomed and sent.id in with_reason:
            yield f"job {seq} is among the failed ones ({reason}), and its handler can do it"
        elif seq not in doomed and not done:
            yield f"job {seq} was never done"
        if completed is not None and (sent.id in completed) == (sent.id in with_reason):
            both = sent.id in completed
            yield f"job {seq} is {'both completed and' if both else 'neither completed nor'} failed"
    for (seq, _), starts in history.starts.items():
        starts.sort(key=lambda start: start.at)
        if any(start.pid in twofold and _raised(history, start) for start in starts):
            continue
        for before, after in pairwise(starts):
            if after.attempt <= before.attempt:
                yield f"job {seq}: attempt {before.attempt} was followed by {after.attempt}"


def _raised(history: History, start: Start) -> bool:
    end = history.end_of(start)
    return end is not None and end.result == "raised"
