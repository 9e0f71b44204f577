"""The application under test as the ``matador`` command loads it: ``chaos.command_app:app``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from chaos.application import make_app
from chaos.facts import FactLog
from chaos.settings import WorkerSettings

APPLICATION = "chaos.command_app:app"
SETTINGS = "CHAOS_APP"
"""The environment variable that holds its settings."""


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    settings = msgspec.json.decode(os.environ[SETTINGS], type=WorkerSettings)
    return make_app(settings.app, FactLog(Path(settings.facts)), consuming=True)
