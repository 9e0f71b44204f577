"""The peers' environment: made once, beside the benchmarks, ignored by git."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

_HERE = Path(__file__).parent
_HOME = _HERE / ".venv"


def python() -> Path:
    """The interpreter of the peers' environment; it is made if it is not there or out of date."""
    interpreter = _HOME / "bin" / "python"
    wanted = (_HERE / "requirements.txt").read_text()
    stamp = _HOME / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing the peers …", file=sys.stderr)
        venv.create(_HOME, with_pip=True, clear=True)
        subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", "-r", _HERE / "requirements.txt"],
            check=True,
        )
        stamp.write_text(wanted)
    return interpreter


def run(script: str, *arguments: object) -> float:
    """Run a peer's script; the rate it prints."""
    done = subprocess.run(
        [python(), _HERE / script, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return float(done.stdout.split()[-1])
