"""What worker commands offer to those who watch: metrics and health checks over HTTP, JSON logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from matador.cli.commands import a_path, choice, option
from matador.cli.output import UsageError, json_logs, wrong_usage
from matador.errors import ConfigurationError, MissingExtraError
from matador.observe.endpoint import LOOPBACK, MetricsServer
from matador.observe.history import History
from matador.observe.metrics import PrometheusMetrics
from matador.observe.probes import AnyHealth
from matador.runtime.process import Runnable
from matador.runtime.recorder import Recorder, Recorders

LOG_FORMATS = ("human", "json")
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing:
    """The options of worker commands that are about metrics, health checks and logs."""

    metrics_port: Annotated[
        int | None,
        option(
            "PORT",
            "Serve /metrics, /health/live and /health/ready over HTTP. "
            "With --processes, process N gets PORT + N - 1.",
            "--metrics-port",
            min=1,
            max=_LAST_PORT,
        ),
    ] = None
    metrics_host: Annotated[
        str, option("HOST", "The address to serve them on.", "--metrics-host")
    ] = LOOPBACK
    history: Annotated[
        Path | None,
        option(
            "FILE",
            "Record what the worker does in this SQLite file, for `matador dashboard`.",
            "--history",
            parser=a_path,
        ),
    ] = None
    log_format: Annotated[
        str, choice("FORMAT", "Log lines for people, or as JSON.", "--log-format", LOG_FORMATS)
    ] = "human"

    @property
    def as_json(self) -> bool:
        """Are log lines JSON?"""
        return self.log_format == "json"

    def check(self) -> None:
        """Refuse options that would have no effect.

        Raises:
            UsageError: there is an address for metrics, but no port.
        """
        if self.metrics_port is None and self.metrics_host != LOOPBACK:
            raise UsageError("--metrics-host needs --metrics-port")

    def start_logs(self, process: int | None) -> None:
        """Log in the chosen format from now on."""
        if self.as_json:
            json_logs({} if process is None else {"process": process})

    def arguments(self, processes: int) -> list[str]:
        """The options on the command line of each of several processes.

        Raises:
            UsageError: there are not enough ports.
        """
        line = ["--log-format", self.log_format] if self.as_json else []
        line += [] if self.history is None else ["--history", str(self.history)]
        if self.metrics_port is not None:
            if self.metrics_port + processes - 1 > _LAST_PORT:
                first, last = self.metrics_port, self.metrics_port + processes - 1
                raise UsageError(
                    f"--metrics-port: {processes} processes need the ports {first} to {last}, and "
                    f"{_LAST_PORT} is the last one; give a lower port"
                )
            line += ["--metrics-port", str(self.metrics_port), "--metrics-host", self.metrics_host]
        return line

    def metrics_among(self, present: Iterable[object]) -> tuple[PrometheusMetrics | None, bool]:
        """The metrics to serve, if any are to be served, and whether they are new.

        Those that the application has are used.

        Raises:
            UsageError: the extra is not installed.
        """
        if self.metrics_port is None:
            return None, False
        for one in present:
            if isinstance(one, PrometheusMetrics):
                return one, False
        with wrong_usage(MissingExtraError):
            return PrometheusMetrics(), True

    def history_among(self, present: Iterable[object]) -> History | None:
        """A history to add, if one was asked for and the application has none."""
        if self.history is None or any(isinstance(one, History) for one in present):
            return None
        return History(self.history)

    def served(
        self, worker: Observable, metrics: PrometheusMetrics | None, process: int | None
    ) -> Runnable:
        """The worker with an endpoint beside it, if one was asked for.

        Raises:
            UsageError: the port is taken, or the address is not one of this machine.
        """
        if metrics is None or self.metrics_port is None:
            return worker
        port = self.metrics_port + (process or 1) - 1
        with wrong_usage(ConfigurationError):
            server = MetricsServer(worker, metrics, host=self.metrics_host, port=port)
        return _Served(worker, server)


class Observable(Runnable, Protocol):
    """A worker that says how it is doing."""

    def health(self) -> AnyHealth:
        """How it is doing."""
        ...


class _Served:
    """A worker with an endpoint, which answers from before the start until after the shutdown."""

    def __init__(self, worker: Runnable, server: MetricsServer) -> None:
        self._worker = worker
        self._server = server

    async def start(self) -> None:
        await self._server.start()
        try:
            await self._worker.start()
        except BaseException:
            await self._server.close()
            raise

    async def shutdown(self) -> None:
        try:
            await self._worker.shutdown()
        finally:
            await self._server.close()

    async def force_shutdown(self) -> None:
        await self._worker.force_shutdown()


def flat(recorder: Recorder | None) -> list[Recorder]:
    """A recorder, or those that it consists of."""
    if isinstance(recorder, Recorders):
        return [one for inner in recorder.recorders for one in flat(inner)]
    return [] if recorder is None else [recorder]
