"""Writes the table of what each provider of jobs can do, from what the providers say.

``python docs/capabilities.py`` writes it into the guide. A test fails when the guide differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from matador.jobs import JobCapabilities, JobProvider

PAGE = Path(__file__).parent / "guides" / "background-jobs.md"
BEGIN, END = "<!-- capabilities -->", "<!-- end of capabilities -->"

PROVIDERS = {
    "memory": "memory://",
    "SQLite": "sqlite:///jobs.db",
    "Redis (BullMQ)": "redis://localhost",
    "RabbitMQ": "amqp://localhost",
    "SQS": "sqs://eu-west-1",
    "Kafka": "kafka://localhost",
}
"""The columns, and an address of each."""

ROWS = {
    "delays": "`delay`",
    "priorities": "`priority`",
    "retries": "`attempts`",
    "backoff": "`backoff`",
    "dead_letters": "failed jobs are kept",
    "find": "`queue.get`",
    "unique_ids": "refuses a `job_id` that is taken",
    "list": "`queue.list` for every state",
    "counts": "`queue.stats`, `queue.health`",
    "results": "results",
    "progress": "stored progress",
    "provider_options": "`provider_options`",
    "keep": "`remove_on_complete`, `remove_on_fail`",
    "retry": "`queue.retry`",
    "remove": "`queue.remove`",
    "cancel": "`queue.cancel`, `handle.cancel`",
    "pause": "`queue.pause`",
    "delete": "`queue.delete`",
    "unique": "`unique`",
    "schedules": "recurring jobs",
    "flows": "chains and groups",
    "rate_limit": "`rate_limit`",
    "concurrency_per_key": "`concurrency_per_key`",
    "long_polling": "workers wait for jobs without polling",
    "max_job_size": "largest job",
    "max_batch": "jobs fetched at once",
    "max_delay": "longest delay",
}
"""The rows, by the fields of ``JobCapabilities``. Those that no provider has are left out."""


def table() -> str:
    """The table, as Markdown."""
    providers = {name: JobProvider(url) for name, url in PROVIDERS.items()}
    lines = [
        f"| | {' | '.join(providers)} |",
        f"|---|{'---|' * len(providers)}",
        _row(
            "survives a restart", [one.transport.capabilities.durable for one in providers.values()]
        ),
    ]
    for field in fields(JobCapabilities):
        values = [getattr(one.capabilities, field.name) for one in providers.values()]
        if any(values):
            lines.append(_row(ROWS[field.name], values, _SHOWN.get(field.name, _yes_or_no)))
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    """The page with the table of today."""
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    return f"{start}{BEGIN}\n{table()}\n{END}{end}"


def _row(name: str, values: list[Any], show: Callable[[Any], str] | None = None) -> str:
    return f"| {name} | {' | '.join(map(show or _yes_or_no, values))} |"


def _yes_or_no(value: Any) -> str:
    return "yes" if value else "no"


def _size(value: int | None) -> str:
    return "any" if value is None else f"{value:,} bytes"


def _number(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"


def _duration(value: float | None) -> str:
    if value is None:
        return "any"
    return f"{value / 86400:,.0f} days" if value >= 86400 else f"{value / 60:,.0f} minutes"


_SHOWN: dict[str, Callable[[Any], str]] = {
    "max_job_size": _size,
    "max_batch": _number,
    "max_delay": _duration,
}

if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
