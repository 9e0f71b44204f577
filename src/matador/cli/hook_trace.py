"""Prints hooks as they are called, for ``--verbose``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from matador.cli.safe_text import tidy
from matador.runtime.hooks import Hooks

_DETAILS: dict[str, Callable[[Any], str]] = {
    "on_enqueue_success": lambda event: f"stored in {event.queue}",
    "on_enqueue_warning": lambda event: event.text,
    "on_enqueue_error": lambda event: str(event.error),
    "on_transport_fallback": lambda event: f"{event.failed} → {event.next}: {event.error}",
    "on_worker_before_process": lambda event: f"from {event.queue}",
    "on_worker_success": lambda event: f"{event.duration_ms:.1f} ms, returned {event.result!r}",
    "on_worker_error": lambda event: (
        f"{type(event.error).__name__}: {event.error}; {event.decision}"
    ),
    "on_decode_error": lambda event: f"{event.queue}: {event.error}",
    "on_connection_state_change": lambda event: f"{event.transport}: {event.state.status}",
    "on_checkpoint_loaded": lambda event: f"{event.subscriber}: {event.steps} steps",
    "on_checkpoint_hit": lambda event: f"{event.subscriber}: {event.step}",
    "on_checkpoint_miss": lambda event: f"{event.subscriber}: {event.step}",
    "on_checkpoint_cleared": lambda event: f"{event.subscriber}: {event.reason}",
}
"""What is printed of each hook's event."""


def hook_trace(console: Console) -> Hooks:
    """Hooks that print one line per call."""

    def printing(hook: str, details: Callable[[Any], str]) -> Callable[[Hooks, Any], None]:
        def print_line(_: Hooks, event: Any) -> None:
            envelope = getattr(event, "envelope", None)
            of = ""
            if envelope is not None and hook != "on_decode_error":
                of = f"{envelope.docket.event_key} → {envelope.docket.target_subscriber}: "
            line = Text.assemble((f"{hook:<27}", "cyan"), of, tidy(details(event)))
            console.print(line, soft_wrap=True)

        return print_line

    methods = {hook: printing(hook, details) for hook, details in _DETAILS.items()}
    return type("HookTrace", (Hooks,), methods)()
