"""The options of commands that use Spark: they start one, or connect to one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from matador.cli.commands import option
from matador.cli.interaction import working
from matador.cli.output import UsageError

if TYPE_CHECKING:
    from matador.spark import Lake

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_REMOTE = re.compile(
    r"sc://[^\s/;:]+(:\d{1,5})?(/(;[^\s;=]+=[^\s;]*)*)?|sc://\[[0-9a-f:]+\](:\d{1,5})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs, and its settings."""

    master: Annotated[
        str | None, option("URL", "Where Spark runs, such as spark://host:7077.  [local[*]]")
    ] = None
    remote: Annotated[
        str | None,
        option("URL", "A Spark Connect server, such as sc://host:15002; Java is not needed here."),
    ] = None
    conf: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A setting of Spark, such as spark.executor.memory=2g; repeatable."),
    ] = None

    def settings(self) -> dict[str, str]:
        """The settings by name.

        Raises:
            UsageError: an option is invalid, or two of them exclude each other.
        """
        if self.master is not None and self.remote is not None:
            raise UsageError("--master and --remote exclude each other: give one of them")
        if self.master is not None and not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"--master {self.master!r} is invalid: use local[2], spark://host:7077, yarn or "
                "k8s://… (a Spark Connect server is given with --remote)"
            )
        if self.remote is not None and not _REMOTE.fullmatch(self.remote):
            # Not repeated: it may contain a token.
            raise UsageError("--remote is invalid: use sc://host:15002, or sc://host:443/;token=…")
        found: dict[str, str] = {}
        for one in self.conf or ():
            name, is_given, value = one.partition("=")
            if not (is_given and name.startswith("spark.")):
                raise UsageError(f"--conf {one!r} is invalid: use spark.name=value")
            found[name] = value
        return found


def start_spark(lake: Lake, options: SparkOptions, *, brief: bool = False) -> Lake:
    """Start Spark, or connect to one, with a spinner. ``brief``: see ``spark_session``.

    Raises:
        UsageError: an option is invalid.
        ConfigurationError: Java is missing; the message says how to install it.
        ClusterError: the server does not answer.
    """
    lake.start_later(partial(_session, options, options.settings(), brief))
    with working("starting Spark…" if options.remote is None else "connecting to Spark…"):
        lake.spark  # noqa: B018 - starts it
    return lake


def start_spark_if_needed(lake: Lake, options: SparkOptions) -> Lake:
    """Have Spark started once the lake needs it: a small one may not.

    Raises:
        UsageError: an option is invalid.
    """
    lake.start_later(partial(_session, options, options.settings(), False))
    return lake


def _session(options: SparkOptions, settings: Mapping[str, str], brief: bool) -> Any:
    """The session. Its type is known to ``matador.spark`` alone."""
    from matador.spark import spark_session  # slow to import, and perhaps not installed
    from matador.spark.runtime.messages import silence

    spark = spark_session(options.master, remote=options.remote, config=settings, brief=brief)
    silence(spark)
    return spark
