"""Where a scenario takes place: a folder, a broker, processes, and what they have logged so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import msgspec

from chaos.application import NAMESPACE
from chaos.checker import History, Stored, Verdict, check
from chaos.command_app import SETTINGS
from chaos.facts import FactReader, Ready, Start
from chaos.processes import (
    Process,
    command_arguments,
    job_arguments,
    publisher_arguments,
    worker_arguments,
)
from chaos.profiles import Profile, make_profile
from chaos.settings import (
    AppSettings,
    JobSettings,
    PublisherSettings,
    Publishing,
    WorkerSettings,
)
from matador.model.topology import DeadLetters, dead_letter_name

PATIENCE = 100.0
"""Seconds without a new fact after which a condition that does not come true fails its scenario. A
slow broker that still makes progress has ten times as long."""

_LOOK = 0.01


class ExpectationFailed(Exception):
    """Something that must hold does not."""


def expect(condition: object, otherwise: str) -> None:
    """Fail the scenario unless ``condition`` holds."""
    if not condition:
        raise ExpectationFailed(otherwise)


class Arena:
    """One scenario's own world; everything in it ends with it.

    Args:
        transport: the name of a profile.
        folder: an empty one.
        scale: how many times more than in the tests.
        seed: of all randomness.
    """

    def __init__(self, transport: str, folder: Path, *, scale: int = 1, seed: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.profile: Profile = make_profile(transport, folder)
        self.random = Random(seed)
        self.history = History()
        self.verdict: Verdict | None = None
        self._scale = scale
        self._reader = FactReader(folder)
        self._last_fact = time.monotonic()
        self._processes: list[Process] = []
        self._queues: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        self.profile.close()

    def many(self, few: int) -> int:
        """So many in the tests, more in a long run."""
        return few * self._scale

    # -- processes --------------------------------------------------------------------------------

    def app(self, *, lease: float = 30.0, **options: Any) -> AppSettings:
        """The application of this scenario."""
        settings = AppSettings(url=self.profile.url(lease), **options)
        self.watch(*(f"{NAMESPACE}.{queue}" for queue in settings.queues))
        return settings

    def worker(
        self,
        app: AppSettings,
        *,
        environment: Mapping[str, str] | None = None,
        moved_clock: float = 0.0,
        wait: bool = True,
    ) -> Process:
        """Start a worker; by default wait until it consumes."""
        name = self._name("worker")
        settings = WorkerSettings(
            app=app, facts=str(self.folder / f"{name}.facts"), moved_clock=moved_clock
        )
        return self._start(name, worker_arguments(settings), environment, wait)

    def publisher(
        self,
        app: AppSettings,
        publishing: Publishing,
        *,
        environment: Mapping[str, str] | None = None,
        moved_clock: float = 0.0,
    ) -> Process:
        """Start a publisher."""
        name = self._name("publisher")
        settings = PublisherSettings(
            app=app,
            facts=str(self.folder / f"{name}.facts"),
            publishing=publishing,
            moved_clock=moved_clock,
        )
        return self._start(name, publisher_arguments(settings), environment, False)

    def job_process(self, settings: JobSettings) -> Process:
        """Start a process that adds jobs, or a worker of jobs; do not wait until it is ready."""
        name = self._name("jobs")
        facts = str(self.folder / f"{name}.facts")
        settings = msgspec.structs.replace(settings, facts=facts)
        return self._start(name, job_arguments(settings), None, False)

    def watch(self, *queues: str) -> None:
        """These are the work queues, by their full names. ``app`` says so for an application."""
        self._queues = queues

    def command(self, app: AppSettings, *command: str) -> Process:
        """Start the ``matador`` command; ``APPLICATION`` names this application."""
        name = self._name("command")
        settings = WorkerSettings(app=app, facts=str(self.folder / f"{name}.facts"))
        environment = {SETTINGS: msgspec.json.encode(settings).decode()}
        return self._start(name, command_arguments(*command), environment, False)

    def publish(self, app: AppSettings, count: int, **options: Any) -> None:
        """Publish ``count`` messages with a process of their own, and wait for it."""
        publisher = self.publisher(app, Publishing(count=count, **options))
        self.wait_exit(publisher)

    def _name(self, kind: str) -> str:
        return f"{len(self._processes):03d}-{kind}"

    def _start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        wait: bool,
    ) -> Process:
        process = Process(arguments, self.folder / f"{name}.log", environment)
        self._processes.append(process)
        if wait:
            self.wait(lambda: self._is_ready(process), f"{name} to be ready")
        return process

    def _is_ready(self, process: Process) -> bool:
        expect(process.alive, f"it ended before it was ready:\n{process.output[-2000:]}")
        return any(
            isinstance(fact, Ready) and fact.pid == process.pid for fact in self.history.others
        )

    # -- waiting ----------------------------------------------------------------------------------

    def look(self) -> History:
        """Read what was logged meanwhile."""
        facts = list(self._reader.new_facts())
        if facts:
            self._last_fact = time.monotonic()
        self.history.add(facts)
        return self.history

    def wait(
        self, condition: Callable[[], object], what: str, *, patience: float | None = None
    ) -> None:
        """Wait until ``condition`` holds; the history is kept up to date meanwhile.

        ``patience``: fail after so many seconds, whatever happens meanwhile.
        """
        began = time.monotonic()
        self.look()
        while not condition():
            now = time.monotonic()
            waited = now - began
            if patience is None:
                gives_up = now - max(began, self._last_fact) > PATIENCE or waited > 10 * PATIENCE
            else:
                gives_up = waited > patience
            if gives_up:
                raise ExpectationFailed(f"waited {waited:.0f} s in vain for {what}")
            time.sleep(_LOOK)
            self.look()
        self.look()  # what was logged while the condition was looked at

    def wait_exit(self, process: Process, *, code: int = 0, patience: float | None = None) -> None:
        """Wait until a process has ended, as it should."""
        self.wait(lambda: not process.alive, "a process to end", patience=patience)
        expect(
            process.exit_code == code,
            f"a process ended with {process.exit_code}, not {code}:\n{process.output[-2000:]}",
        )

    def wait_ready(self, process: Process) -> None:
        """Wait until a process is up and connected."""
        self.wait(lambda: self._is_ready(process), "a process to be ready")

    def wait_started(self, count: int) -> None:
        """Wait until so many runs of handlers have started."""
        self.wait(lambda: len(self.starts()) >= count, f"{count} runs to start")

    def wait_empty(self, *, patience: float | None = None) -> None:
        """Wait until nothing is left in the work queues."""
        self.wait(lambda: self.depth() == 0, "the work queues to be empty", patience=patience)

    # -- looking ----------------------------------------------------------------------------------

    def starts(self) -> list[Start]:
        """Every run that was started, in order."""
        found = [start for starts in self.history.starts.values() for start in starts]
        return sorted(found, key=lambda start: start.at)

    def depth(self) -> int:
        """How many messages are in the work queues."""
        return sum(self.profile.depth(queue) for queue in self._queues)

    def waiting(self) -> list[Stored]:
        """What is in the work queues, whatever its state."""
        return [one for queue in self._queues for one in self.profile.stored(queue)]

    def dead_letters(self) -> list[Stored]:
        """What is among the dead letters."""
        return [
            one
            for queue in self._queues
            for kind in DeadLetters().enabled_kinds
            for one in self.profile.stored(dead_letter_name(queue, kind))
        ]

    def dead_numbers(self) -> list[int]:
        """The numbers of the messages among the dead letters, in order."""
        return sorted(one.target[0] for one in self.dead_letters() if one.target is not None)

    def gate(self, name: str = "gate") -> Path:
        """A file that is not there yet; touch it to let those through who wait for it."""
        return self.folder / name

    # -- judging ----------------------------------------------------------------------------------

    def measure(self) -> Verdict:
        """The five numbers as they are now."""
        self.look()
        self.verdict = check(
            self.history,
            waiting=self.waiting(),
            dead=self.dead_letters(),
            late_repeats=not self.profile.atomic,
        )
        return self.verdict

    def judge(self, *, duplicated: int = 0) -> Verdict:
        """The five numbers. Fails unless all are 0 that the broker can keep at 0; of duplicates so
        many are allowed."""
        damage = self.profile.damage()
        expect(damage is None, f"the storage is damaged: {damage}")
        verdict = self.measure()
        wrong = [verdict.unexpected, verdict.stuck]
        if self.profile.ordered:
            wrong.append(verdict.reordered)
        if self.profile.durable:
            wrong.append(verdict.lost)
        examples = "".join(f"\n  {example}" for example in verdict.examples)
        expect(not any(wrong), f"{verdict}{examples}")
        expect(
            verdict.duplicated <= duplicated,
            f"{verdict}; at most {duplicated} duplicates are allowed{examples}",
        )
        return verdict


def changed(app: AppSettings, **changes: Any) -> AppSettings:
    """The same application with other settings."""
    return msgspec.structs.replace(app, **changes)


def numbers(found: Sequence[Start]) -> list[int]:
    """The numbers of the messages of these runs, in order."""
    return [start.seq for start in found]
