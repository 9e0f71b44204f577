"""Spark's Java classes, loaded and checked once and kept in a file: sessions start much sooner.

The file belongs to one Java and one installation of PySpark. Java itself takes no notice of one
that does not fit, so it can never do harm. About 200 MB.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from matador.errors import SparkPreparationError
from matador.spark.java import find_java

_PATIENCE = 600.0
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
    """How Java is told of the archive; nothing if there is none."""
    path = archive_path()
    if not path.is_file():
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=error"]


def prepare(*, again: bool = False) -> Path:
    """Let Spark start in half the time on this machine, from now on. Takes a minute, once.

    Rehearses what is usually done with Spark, and keeps the Java classes it took: the path of that
    file, about 200 MB, below ``MATADOR_CACHE`` or in the user's folder for caches. ``again``: also
    if it is there.

    Raises:
        ConfigurationError: there is no Java 17 or newer.
        SparkPreparationError: it did not work out; the message says why.
    """
    path = archive_path()
    if path.is_file() and not again:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
            made = Path(folder) / path.name
            _rehearse(made, Path(folder))
            made.replace(path)
    except OSError as error:
        raise SparkPreparationError(f"{path.parent}: {error.strerror or error}") from error
    return path


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
