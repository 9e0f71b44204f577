"""The plugin is there when Matador is installed, and the kit works where pytest is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import matador.testing
from matador.testing import ManualClock
from matador.transports.memory import MemoryTransport


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_fixtures_are_there_without_asking(tmp_path: Path) -> None:
    test = tmp_path / "test_users.py"
    test.write_text(
        "def test_it(memory_transport, manual_clock):\n"
        "    assert memory_transport.state.status == 'disconnected'\n"
        "    assert manual_clock.monotonic() == 0\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_fixtures_are_of_the_test_alone(
    memory_transport: MemoryTransport, manual_clock: ManualClock
) -> None:
    assert memory_transport.state.status == "disconnected"
    manual_clock.advance(1)
    assert manual_clock.monotonic() == 1


@pytest.mark.parametrize("name", matador.testing.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(matador.testing, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(matador.testing, "nonsense")  # noqa: B009 - unknown to the type checker too


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = sys.modules["pytest_asyncio"] = None
"""


def test_the_kit_works_without_pytest() -> None:
    done = run(
        WITHOUT_PYTEST
        + "from matador.testing import ManualClock, make_envelope, wait_for\n"
        + "import asyncio; print(asyncio.run(wait_for(lambda: make_envelope(1).data)))"
    )
    assert done.stdout.strip() == "1", done.stderr


def test_the_suite_says_which_extra_it_needs() -> None:
    done = run(WITHOUT_PYTEST + "from matador.testing import TransportCompliance")
    assert "pip install 'matador-events[testing]'" in done.stderr


def test_the_plugin_itself_loads_no_transport() -> None:
    done = run(
        "import sys, matador; before = set(sys.modules)\n"
        "import matador.testing.plugin\n"
        "print([m for m in set(sys.modules) - before if m.startswith('matador.')])"
    )
    loaded = sorted(eval(done.stdout))
    assert loaded == ["matador.testing", "matador.testing.plugin"]
