"""Options of worker commands: metrics and health checks over HTTP, history, JSON logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from matador.cli.commands import a_path, choice, option
from matador.cli.output import UsageError, json_logs, wrong_usage
from matador.errors import ConfigurationError, MissingExtraError
from matador.observe.endpoint import LOOPBACK, MetricsServer
from matador.observe.history import History
from matador.observe.metrics import Metrics
from matador.runtime.hooks import Hooks
from matador.runtime.service import Service

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
        """Whether log lines are JSON."""
        return self.log_format == "json"

    def check(self) -> None:
        """Reject options that would have no effect.

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

    def hooks_for(self, receivers: Sequence[Service]) -> list[Hooks]:
        """The hooks for the metrics and the history that the options ask for.

        Metrics that a receiver has are used for all.

        Raises:
            UsageError: the extra is not installed, or receivers have different metrics.
        """
        hooks: list[Hooks] = []
        present = {id(hook): hook for one in receivers for hook in one.hooks}.values()
        if self.metrics_port is not None:
            known = [hook for hook in present if isinstance(hook, Metrics)]
            if len(known) > 1:
                raise UsageError(
                    "--metrics-port: there are several Metrics hooks, and one page cannot show "
                    "them all; give the same object to all, or to none"
                )
            with wrong_usage(MissingExtraError):
                hooks.append(known[0] if known else Metrics())
        if self.history is not None:
            found = next((hook for hook in present if isinstance(hook, History)), None)
            hooks.append(found or History(self.history))
        return hooks

    def endpoint(
        self, receivers: Sequence[Service], hooks: Sequence[Hooks], process: int | None
    ) -> MetricsServer | None:
        """The server of metrics and health checks; None if the options ask for none.

        Raises:
            UsageError: the port is taken, or the address is not one of this machine.
        """
        metrics = next((one for one in hooks if isinstance(one, Metrics)), None)
        if metrics is None or self.metrics_port is None:
            return None
        for one in receivers:
            metrics.watch(one)
        port = self.metrics_port + (process or 1) - 1
        with wrong_usage(ConfigurationError):
            return MetricsServer(receivers, metrics, host=self.metrics_host, port=port)
