"""What is loaded, and when: an adapter only when it is asked for, a tool of tests never."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded_by(program: str) -> set[str]:
    """The modules there are after a program, in a Python of its own."""
    code = f"{program}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_matador_loads_no_adapter_and_no_tool() -> None:
    loaded = loaded_by("import matador, matador.transports, matador.testing")
    for unwanted in (
        "matador.transports.memory",
        "matador.transports.multi",
        "matador.transports.redis",
        "matador.transports.sqlite",
        "matador.testing.harness",
        "matador.testing.compliance",
        "matador.cli",
        "pytest",
        "pytest_asyncio",
        "uuid_utils",
        "multiprocessing",
    ):
        assert unwanted not in loaded


def test_a_transport_loads_itself_and_no_other() -> None:
    loaded = loaded_by("from matador.transports import MemoryTransport")
    assert "matador.transports.memory" in loaded
    assert "matador.transports.sqlite" not in loaded
    loaded = loaded_by(
        "from matador.transports import transport_from_url\n"
        "transport_from_url('sqlite:///never-made.db')"
    )
    assert "matador.transports.sqlite" in loaded
    assert "matador.transports.memory" not in loaded


def test_an_application_loads_only_its_own_transport() -> None:
    loaded = loaded_by("import matador\nmatador.Matador('memory://', schema=matador.Schema())")
    assert "matador.transports.memory" in loaded
    assert {"matador.transports.sqlite", "matador.transports.multi"} & loaded == set()
