"""The peers' environments: made once, beside the benchmarks, ignored by git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

_HERE = Path(__file__).parent
_HOME = _HERE / ".venv"
_NODE = _HERE / "node"


def python(requirements: str = "requirements.txt") -> Path:
    """The interpreter of an environment; it is made if it is not there or out of date."""
    home = _HOME if requirements == "requirements.txt" else _HOME / Path(requirements).stem
    interpreter = home / "bin" / "python"
    wanted = (_HERE / requirements).read_text()
    stamp = home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing the peers …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=home != _HOME)
        subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", "-r", _HERE / requirements],
            check=True,
        )
        stamp.write_text(wanted)
    return interpreter


def node() -> str | None:
    """Node, with what its peers need installed; None if this machine has none."""
    interpreter, installer = shutil.which("node"), shutil.which("npm")
    if interpreter is None or installer is None:
        return None
    wanted = (_NODE / "package-lock.json").read_text()
    stamp = _NODE / "node_modules" / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing the peers on Node …", file=sys.stderr)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(
            [installer, "install", "--no-save", *options], cwd=_NODE, check=True, stdout=sys.stderr
        )
        stamp.write_text(wanted)
    return interpreter


def run(
    script: str, *arguments: object, requirements: str = "requirements.txt", timeout: float = 600
) -> float:
    """Run a peer's script; the rate it prints."""
    return run_for_all(script, *arguments, requirements=requirements, timeout=timeout)[-1]


def run_for_all(
    script: str, *arguments: object, requirements: str = "requirements.txt", timeout: float = 600
) -> list[float]:
    """Run a peer's script, a Python or a Node one; all figures of the last line it prints."""
    if script.endswith(".mjs"):
        interpreter = node()
        assert interpreter is not None, "there is no Node"
        file = _NODE / script
    else:
        interpreter, file = python(requirements), _HERE / script
    return figures([str(interpreter), str(file), *map(str, arguments)], timeout)


def figures(command: list[str], timeout: float) -> list[float]:
    """Run a command in a group of its own, which ends with it; the figures it prints last."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, 9)
        process.communicate()
        raise
    if process.returncode != 0:
        what = " ".join(Path(part).name if "/" in part else part for part in command[1:])
        raise RuntimeError(f"{what} ended with {process.returncode}:\n{errors[-3000:]}")
    return [float(word) for word in out.strip().splitlines()[-1].split()]
