"""Spark's Java classes, loaded and checked once and kept in a file: sessions start much sooner.

The file belongs to one Java and one installation of PySpark; Java itself takes no notice of one
that does not fit. About 200 MB. It is code that runs as us: it is used only if nobody else could
have put it there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from matador.errors import SparkPreparationError
from matador.spark.files import private_folder
from matador.spark.java import find_java

log = logging.getLogger("matador.spark")

_PATIENCE = 600.0
_ROOT = 0  # can do anything anyway, and builds the images of containers
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REHEARSE = "from matador.spark.rehearsal import main; main()"


def cache_folder() -> Path:
    """Where files go that can be made again: ``MATADOR_CACHE``, or ``matador`` in the user's."""
    given = os.environ.get("MATADOR_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matador"


def archive_path() -> Path:
    """Where the archive for this Java and this PySpark is, or would be."""
    java = find_java()
    spark = Path(pyspark.__file__).parent
    parts = (str(java.home), java.release, str(spark), pyspark.__version__)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{java.version}-{digest}.jsa"


def java_options() -> list[str]:
    """How Java is told of the archive; nothing if there is none, or none that can be trusted."""
    path = archive_path()
    if not path.is_file():
        return []
    problem = _problem(path.parent) or _problem(path)
    if problem is not None:
        log.warning(
            "Spark starts slowly: its class archive is not used, as %s. Make one of your own with "
            "`matador spark prepare`, with MATADOR_CACHE naming a folder that only you can change",
            problem,
        )
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=error"]


def prepare(*, again: bool = False) -> Path:
    """Let Spark start in half the time on this machine, from now on. Takes a minute, once.

    Rehearses what is usually done with Spark, and keeps the Java classes it took: the path of that
    file, about 200 MB, below ``MATADOR_CACHE`` or in the user's folder for caches. ``again``: also
    if it is there. One that somebody else may have made is made again.

    Raises:
        ConfigurationError: there is no Java 17 or newer.
        SparkPreparationError: it did not work out; the message says why.
    """
    path = archive_path()
    try:
        private_folder(path.parent)
        problem = _problem(path.parent)
        if problem is not None:
            raise SparkPreparationError(f"{problem}: set MATADOR_CACHE to a folder of your own")
        if path.is_file() and not again and _problem(path) is None:
            return path
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
            made = Path(folder) / path.name
            _rehearse(made, Path(folder))
            made.chmod(0o600)
            made.replace(path)
    except OSError as error:
        raise SparkPreparationError(f"{path.parent}: {error.strerror or error}") from error
    return path


def _problem(path: Path) -> str | None:
    """Why a file or folder may hold what others have put there; None if it cannot."""
    found = path.lstat() if path.is_file() else path.stat()
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"{path} belongs to another user"
    if found.st_mode & _OTHERS_WRITE:
        return f"others can change {path}"
    return None


def _rehearse(path: Path, folder: Path) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _REHEARSE, str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SparkPreparationError(f"Spark was not done after {_PATIENCE:g} s") from error
    if done.returncode != 0 or not path.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SparkPreparationError(said[-1] if said else "Java wrote no archive")
