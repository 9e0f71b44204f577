"""New jobs: checked, within what the provider can do, and written as messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from matador.errors import InvalidJobError
from matador.jobs.data import encode_json
from matador.jobs.job import Job, metadata_json
from matador.jobs.options import CheckedOptions, MakeId, check_id, check_options
from matador.jobs.unsupported import UnsupportedOptions
from matador.jobs.wire import new_id, new_message
from matador.model.job import JobCapabilities
from matador.model.message import Message

# Which ability an option needs, and what it is once it is left out.
_NEEDS: dict[str, tuple[str, Any]] = {
    "delay": ("delays", 0.0),
    "priority": ("priorities", None),
    "backoff": ("backoff", None),
    "concurrency_key": ("concurrency_per_key", None),
    "unique": ("unique", None),
    "provider_options": ("provider_options", {}),
    "keep_completed": ("keep", None),
    "keep_failed": ("keep", None),
}
_NAMES = {"keep_completed": "remove_on_complete", "keep_failed": "remove_on_fail"}


class JobMaker:
    """Makes the jobs of one queue."""

    def __init__(
        self,
        queue: str,
        where: str,
        defaults: Mapping[str, Any],
        make_id: MakeId | None,
        unsupported: UnsupportedOptions,
    ) -> None:
        self.defaults: Mapping[str, Any] = dict(defaults)
        self._queue = queue
        self._where = where
        self._checked = check_options(self.defaults, f"{where} default_options")
        self._make_id = make_id
        self._unsupported = unsupported
        self._full_name = queue
        self._can = JobCapabilities()
        self._provider = ""

    def bind(self, full_name: str, capabilities: JobCapabilities, provider: str) -> None:
        """Say where the jobs will go."""
        self._full_name, self._can, self._provider = full_name, capabilities, provider

    def make(
        self, name: str, data: Any, job_id: str | None, options: Mapping[str, Any]
    ) -> tuple[Message, Job[Any]]:
        """A job and its message.

        Raises:
            InvalidJobError: an argument is wrong.
        """
        where = f"{self._where} add"
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidJobError(f"{where}: name must be a non-empty string, got {name!r}")
        now = time.time()
        if job_id is not None:
            check_id(job_id, where)
        elif self._make_id is not None:
            job_id = check_id(self._make_id(name, data), where)
        else:
            job_id = new_id(now)
        checked = self._checked
        if options:
            checked = check_options({**self.defaults, **options}, where)
        if options or self.defaults:
            checked = self._supported(checked)
        where = f"{where} {name!r}"
        encoded = encode_json(data, f"{where}: data")
        metadata = metadata_json(checked.metadata, where)
        message = new_message(self._full_name, job_id, name, encoded, metadata, checked, now)
        limit = self._can.max_job_size
        if limit is not None and len(message.body) > limit:
            raise InvalidJobError(
                f"{where}: the job has {len(message.body):,} bytes, the provider takes {limit:,}"
            )
        due = datetime.fromtimestamp(now + checked.delay, UTC) if checked.delay else None
        job: Job[Any] = Job(
            id=job_id,
            name=name,
            queue=self._queue,
            data=data,
            status="waiting" if due is None else "delayed",
            max_attempts=checked.attempts,
            created_at=datetime.fromtimestamp(now, UTC),
            scheduled_for=due,
            priority=checked.priority,
            metadata=dict(checked.metadata or {}),
        )
        return message, job

    def _supported(self, options: CheckedOptions) -> CheckedOptions:
        """The options that the provider can honour. The others are warned about and left out."""
        can, lacking = self._can, dict[str, Any]()
        for name, (ability, nothing) in _NEEDS.items():
            if getattr(options, name) not in (None, 0.0, {}) and not getattr(can, ability):
                lacking[name] = nothing
                value = getattr(options, name)
                self._unsupported.report(_NAMES.get(name, name), value, self._provider)
        if can.max_delay is not None and can.delays and options.delay > can.max_delay:
            raise InvalidJobError(
                f"{self._where} add: the provider delays by at most {can.max_delay:g} s, "
                f"got {options.delay:g} s"
            )
        return replace(options, **lacking) if lacking else options
