"""Shows every hook as it is called."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from matador.cli.safe_text import tidy
from matador.events.hooks import (
    CheckpointEvent,
    ConnectionChange,
    DecodeFailure,
    EnqueueError,
    EnqueueSuccess,
    EnqueueWarning,
    Hooks,
    Processing,
    TransportFallback,
    WorkerError,
    WorkerSuccess,
)


class Tracing(Hooks):
    """Prints a line for every hook that tells of something."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """See ``Hooks``."""
        self._say("on_enqueue_success", event.envelope, f"stored in {event.queue}")

    def on_enqueue_warning(self, event: EnqueueWarning) -> None:
        """See ``Hooks``."""
        self._say("on_enqueue_warning", event.envelope, event.text)

    def on_enqueue_error(self, event: EnqueueError) -> None:
        """See ``Hooks``."""
        self._say("on_enqueue_error", event.envelope, str(event.error))

    def on_transport_fallback(self, event: TransportFallback) -> None:
        """See ``Hooks``."""
        self._say("on_transport_fallback", None, f"{event.failed} → {event.next}: {event.error}")

    def on_worker_before_process(self, event: Processing) -> None:
        """See ``Hooks``."""
        self._say("on_worker_before_process", event.envelope, f"from {event.queue}")

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        took = f"{event.duration_ms:.1f} ms, returned {event.result!r}"
        self._say("on_worker_success", event.envelope, took)

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        said = f"{type(event.error).__name__}: {event.error}; {event.decision}"
        self._say("on_worker_error", event.envelope, said)

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        self._say("on_decode_error", None, f"{event.queue}: {event.error}")

    def on_connection_state_change(self, event: ConnectionChange) -> None:
        """See ``Hooks``."""
        self._say("on_connection_state_change", None, f"{event.transport}: {event.state.status}")

    def on_checkpoint_loaded(self, event: CheckpointEvent) -> None:
        """See ``Hooks``."""
        self._say("on_checkpoint_loaded", None, f"{event.subscriber}: {event.steps} steps")

    def on_checkpoint_hit(self, event: CheckpointEvent) -> None:
        """See ``Hooks``."""
        self._say("on_checkpoint_hit", None, f"{event.subscriber}: {event.step}")

    def on_checkpoint_miss(self, event: CheckpointEvent) -> None:
        """See ``Hooks``."""
        self._say("on_checkpoint_miss", None, f"{event.subscriber}: {event.step}")

    def on_checkpoint_cleared(self, event: CheckpointEvent) -> None:
        """See ``Hooks``."""
        self._say("on_checkpoint_cleared", None, f"{event.subscriber}: {event.reason}")

    def _say(self, hook: str, envelope: Any, text: str) -> None:
        of = ""
        if envelope is not None:
            of = f"{envelope.docket.event_key} → {envelope.docket.target_subscriber}: "
        line = Text.assemble((f"{hook:<27}", "cyan"), of, tidy(text))
        self._console.print(line, soft_wrap=True)
