"""The queue of the SDK's ``BatchSpanProcessor``, into which spans are put without a detour.

What its ``on_end`` does for nearly every span is to put it into a queue, by way of two functions
and a system call. The thread that exports takes it from there. Here it is put there directly,
unless the processor has something else to do: wake its thread, drop a span, or say that it was shut
down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any

# What the functions that are left out look at. Others do something that we do not know.
_ON_END = {"context", "trace_flags", "sampled", "_batch_processor", "emit"}
_EMIT = {
    *("_shutdown", "_logger", "info", "_exporting", "_metrics", "drop_items", "warning"),
    *("_pid", "os", "getpid", "_bsp_reset_once", "do_once", "_at_fork_reinit"),
    *("len", "_queue", "_max_queue_size", "appendleft", "_max_export_batch_size"),
    *("_worker_awaken", "is_set", "set"),
}


class BatchQueue:
    """The queue of one processor. Any thread may use it, and a forked process, too."""

    __slots__ = ("_on_end", "_put", "_queue", "_room", "_state")

    def __init__(self, processor: Any, queue: Any) -> None:
        state = processor._batch_processor
        self._state = state
        self._queue = queue  # is emptied, not replaced, after a fork
        self._put = queue.appendleft
        self._on_end = processor.on_end
        # With one more than this, the thread is woken, or a span is dropped.
        self._room = min(state._max_export_batch_size, state._max_queue_size) - 1

    def put(self, span: Any) -> None:
        """Have a span that is sampled and has ended exported."""
        if len(self._queue) < self._room and not self._state._shutdown:
            self._put(span)
        else:
            self._on_end(span)


def batch_queue(processors: Sequence[Any]) -> BatchQueue | None:
    """The queue of the only processor, if it is a ``BatchSpanProcessor`` as we know it."""
    try:
        from opentelemetry.sdk._shared_internal import BatchProcessor
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:  # an older SDK
        return None
    if len(processors) != 1 or type(processors[0]) is not BatchSpanProcessor:
        return None
    processor: Any = processors[0]
    inner: Any = getattr(processor, "_batch_processor", None)
    queue: Any = getattr(inner, "_queue", None)
    if type(inner) is not BatchProcessor or "on_end" in vars(processor) or "emit" in vars(inner):
        return None
    emit: Any = vars(BatchProcessor).get("emit")
    if not (_uses(BatchSpanProcessor.on_end, _ON_END) and _uses(emit, _EMIT)):
        return None
    return BatchQueue(processor, queue) if isinstance(queue, deque) else None


def _uses(function: object, names: set[str]) -> bool:
    return isinstance(function, FunctionType) and set(function.__code__.co_names) == names
