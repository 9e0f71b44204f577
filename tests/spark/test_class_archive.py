"""Spark's classes in a file: used when it is there, harmless when it does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from matador.errors import SparkPreparationError
from matador.spark import class_archive, prepare

SESSION = """
from matador.spark import spark_session
spark = spark_session("local[1]")
print(spark.range(3).count())
spark.stop()
"""


def test_an_archive_that_does_not_fit_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "with a blank"
    cache.mkdir()
    monkeypatch.setenv("MATADOR_CACHE", str(cache))
    assert class_archive.java_options() == []
    class_archive.archive_path().write_bytes(b"not an archive")
    assert class_archive.java_options()[0] == (
        f"-XX:SharedArchiveFile={class_archive.archive_path()}"
    )
    done = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path))
    class_archive.archive_path().touch()
    assert prepare() == class_archive.archive_path()
    assert class_archive.archive_path().stat().st_size == 0


def test_the_users_folder_for_caches_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MATADOR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert class_archive.archive_path().parent == tmp_path / "matador"


def test_a_folder_that_cannot_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SparkPreparationError, match="cache"):
        prepare()


def test_what_went_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path))
    monkeypatch.setattr(class_archive, "_REHEARSE", "raise SystemExit('no room')")
    with pytest.raises(SparkPreparationError, match="no room"):
        prepare()
    assert list(tmp_path.iterdir()) == []
