"""Some fault scenarios on a Kafka of the tests' own, with small numbers.

``chaos/run kafka`` plays all of them, and the long run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.scenarios import CATALOGUE
from tests.support.chaos import assert_holds

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.xdist_group("kafka")]


@pytest.mark.parametrize("name", ["F4", "F8", "F10", "F26", "order"])
def test_holds(name: str, tmp_path: Path) -> None:
    (scenario,) = (one for one in CATALOGUE.all() if one.name == name)
    assert_holds(scenario, "kafka", tmp_path)
