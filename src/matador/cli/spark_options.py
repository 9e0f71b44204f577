"""The options of commands that start Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from matador.cli.commands import option
from matador.cli.output import UsageError

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


def check_master(master: str | None) -> None:
    """Raise ``UsageError`` if that is not where Spark can run."""
    if master is not None and not _MASTER.fullmatch(master):
        raise UsageError(
            f"--master {master!r} is invalid: use local[2], spark://host:7077, yarn or k8s://…"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs, and its settings."""

    master: Annotated[
        str | None, option("URL", "Where Spark runs, such as spark://host:7077.  [local[*]]")
    ] = None
    conf: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A setting of Spark, such as spark.executor.memory=2g; repeatable."),
    ] = None

    def settings(self) -> dict[str, str]:
        """The settings by name.

        Raises:
            UsageError: an option is invalid.
        """
        check_master(self.master)
        found: dict[str, str] = {}
        for one in self.conf or ():
            name, is_given, value = one.partition("=")
            if not (is_given and name.startswith("spark.")):
                raise UsageError(f"--conf {one!r} is invalid: use spark.name=value")
            found[name] = value
        return found
