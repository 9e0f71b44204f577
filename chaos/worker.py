"""A worker process: ``python -m chaos.worker SETTINGS``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from chaos.application import make_app
from chaos.clocks import move_clock
from chaos.facts import FactLog, Ready
from chaos.settings import WorkerSettings
from matador.runtime.process import run


def main(argument: str) -> None:
    """Consume until a signal ends it."""
    settings = msgspec.json.decode(argument, type=WorkerSettings)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    move_clock(settings.moved_clock)
    facts = FactLog(Path(settings.facts))

    async def ready() -> None:
        facts.write(Ready(os.getpid()))

    run(make_app(settings.app, facts, consuming=True), meanwhile=ready)


if __name__ == "__main__":
    main(sys.argv[1])
