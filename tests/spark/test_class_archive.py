"""Spark's classes in a file: used when it is there, harmless when it does not fit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from matador.errors import SparkPreparationError
from matador.spark import class_archive, prepare
from matador.spark.runtime import java

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
    cache.mkdir(0o700)
    monkeypatch.setenv("MATADOR_CACHE", str(cache))
    assert java.class_archive_options() == []
    java.archive_path().write_bytes(b"not an archive")
    assert java.class_archive_options()[0] == (f"-XX:SharedArchiveFile={java.archive_path()}")
    done = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path))
    java.archive_path().touch(0o600)
    assert prepare() == java.archive_path()
    assert java.archive_path().stat().st_size == 0


def test_the_users_folder_for_caches_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MATADOR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.archive_path().parent == tmp_path / "matador"


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


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive that is ours, in a folder that is ours."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("MATADOR_CACHE", str(cache))
    monkeypatch.setattr(class_archive, "_REHEARSE", _MAKE)
    return prepare()


_MAKE = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(b'made by us')"


def test_what_is_made_is_its_owners_alone(archive: Path) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert stat.S_IMODE(archive.parent.stat().st_mode) == 0o700
    assert java.class_archive_options() != []


def assert_not_used(caplog: pytest.LogCaptureFixture, why: str) -> None:
    assert java.class_archive_options() == []
    assert why in caplog.text
    assert "matador spark prepare" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_archive_that_others_can_change_is_not_used(
    archive: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    archive.chmod(mode)
    assert_not_used(caplog, f"others can change {archive}")


@pytest.mark.parametrize("mode", [0o770, 0o703, 0o1777])
def test_an_archive_that_others_can_replace_is_not_used(
    archive: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    archive.parent.chmod(mode)
    assert_not_used(caplog, f"others can change {archive.parent}")


def test_an_archive_of_another_user_is_not_used_but_for_roots(
    archive: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = archive.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(java, "_ROOT", owner)
    assert java.class_archive_options() != []
    assert caplog.text == ""
    monkeypatch.setattr(java, "_ROOT", owner + 2)
    assert_not_used(caplog, "belongs to another user")


def test_a_link_is_not_used(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive.rename(archive.with_name("elsewhere"))
    archive.symlink_to("elsewhere")
    assert_not_used(caplog, f"{archive} is a link")


def test_an_archive_that_others_may_have_made_is_made_again(archive: Path) -> None:
    archive.write_bytes(b"theirs")
    archive.chmod(0o666)
    assert prepare().read_bytes() == b"made by us"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600


def test_nothing_is_made_where_others_could_change_it(archive: Path) -> None:
    archive.parent.chmod(0o777)
    with pytest.raises(SparkPreparationError, match="set MATADOR_CACHE to a folder of your own"):
        prepare()
