"""``way``: each way in on each transport that carries it.

``jobs-redis`` is BullMQ. What a transport does not carry, and why, is in ``Way.lacks``.

What runs where depends on the kind of fact:

- settlement, such as what is in a dead letter: every variation on memory, SQLite, Redis and
  RabbitMQ (``THOROUGH``), and the first one on SQS and Kafka (``SLOW``). That is the default. Those
  of Kafka are left to ``script/test kafka``, except for ``KAFKA_EACH_TIME`` in
  ``tests/conftest.py``.
- the pipeline, such as what runs and what it is told: in memory, on SQLite and on one broker
  (``PIPELINE``).
- hooks and life cycles, which no transport knows of: in memory and on SQLite (``IN_PROCESS``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.ways.places import place_on
from tests.ways.ways import ALL, IN_PROCESS, SLOW, TRANSPORTS, Way


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``way``. A test narrows or widens it with ``@over(...)``."""
    if "way" not in metafunc.fixturenames:
        return
    options: dict[str, Any] = dict(getattr(metafunc.function, "over", {}))
    ways: Collection[type[Way]] = options.pop("ways", ALL)
    also: Collection[type[Way]] = options.pop("also", ())
    transports: Collection[str] = options.pop("transports", TRANSPORTS)
    metafunc.parametrize(
        "way",
        [
            pytest.param(
                (kind, name),
                id=f"{kind.name}-{name}",
                marks=() if name in IN_PROCESS else pytest.mark.broker,
            )
            for name in transports
            for kind in (*ways, *also)
            if name not in kind.lacks
            and all(getattr(kind, what) == value for what, value in options.items())
        ],
        indirect=True,
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On slow transports only the first case of a parametrized test runs."""
    left_out = [one for one in items if _is_variation(one)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [one for one in items if one not in left_out]


def _is_variation(item: pytest.Item) -> bool:
    case: Any = getattr(item, "callspec", None)
    if case is None or "way" not in case.params or not isinstance(case.params["way"], tuple):
        return False
    _, transport = case.params["way"]
    return transport in SLOW and any(at for name, at in case.indices.items() if name != "way")


@pytest_asyncio.fixture
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    kind, transport = request.param
    async with place_on(transport, tmp_path) as place:
        found: Way = kind(place)
        try:
            yield found
        finally:
            await found.close()
