"""Payload types on their way to the executors: by name from a file, by value from a script."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.journal_files import segment, sent
from tests.spark.shop import open_shop

from matador.errors import ConfigurationError
from matador.loading import load_application
from matador.observe.journal.records import encode_record
from matador.spark import Lake
from matador.spark.runtime.executors import _modules_of, _single_files
from matador.spark.tables.ingest import IngestResult

_SHOP = """
from dataclasses import dataclass

from matador import Matador, Schema, event


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    number: int


app = Matador("memory://", schema=Schema({OrderPlaced: []}))
"""

# What an executor does, without Spark around it: this process has the script's class by value.
_EXECUTOR = """
import sys

from pyspark import cloudpickle
from matador.spark.tables.decode import LineDecoder

decoder = LineDecoder(cloudpickle.loads(sys.stdin.buffer.read()))
for data in ('{"number":1}', '{}'):
    line = LINE.replace(b"DATA", data.encode())
    print([(one.kind, one.reason) for one in decoder.decode(line, "a").problems])
"""

_DUMP = """
import sys
from types import SimpleNamespace

from matador.spark.runtime.executors import event_types

spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
sys.stdout.buffer.write(event_types(spark, app.schema).pickled)
"""


def orders(folder: Path) -> Path:
    segment(folder, "a", [sent(1, '{"number":1}'), sent(2, '{"number":"one"}')])
    return folder


def test_a_file_that_was_not_there_when_the_session_began_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "shop_of_late.py"
    file.write_text(_SHOP)
    lake = Lake(tmp_path / "lake", schema=load_application(f"{file}:app").app.schema, spark=spark)

    found = lake.ingest(orders(tmp_path / "journal"))

    assert found == IngestResult(segments=1, records=2, events=1, quarantined=1)


def test_a_module_that_executors_cannot_import_is_one_clear_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = open_shop(tmp_path, "shop_nowhere", "again")  # its folder is no place to import from
    lake = Lake(tmp_path / "lake", schema=shop.module.schema, spark=spark)
    journal = orders(tmp_path / "journal")

    with pytest.raises(ConfigurationError) as raised:
        lake.ingest(journal)

    assert str(raised.value) == (
        "the executors cannot import the payload types: ModuleNotFoundError: No module named "
        "'shop_nowhere'; install their module there, or send its file with "
        "spark.addArtifacts(…, pyfile=True)"
    )
    found = Lake(tmp_path / "lake", spark=spark).ingest(journal)
    assert found.events == 2, "the batch that was begun is done, once it can be"


def test_a_dataclass_of_a_script_misses_its_fields_as_any_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SHOP + _DUMP)
    dumped = subprocess.run([sys.executable, script], capture_output=True, check=True)
    (tmp_path / "executor.py").write_text(f"LINE = {_line()!r}\n{_EXECUTOR}")

    said = subprocess.run(
        [sys.executable, tmp_path / "executor.py"],
        input=dumped.stdout,
        capture_output=True,
        check=True,
    )

    good, bad = said.stdout.decode().splitlines()
    assert good == "[]"
    assert "invalid-payload" in bad
    assert "missing required field `number`" in bad


def _line() -> bytes:
    return encode_record(sent(1, '"DATA"')).replace(b'"DATA"', b"DATA")


def test_only_modules_of_one_file_are_sent_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "shipped_alone.py").write_text("class A: ...\n")
    (tmp_path / "shipped_package").mkdir()
    for name in ("__init__", "inside"):
        (tmp_path / "shipped_package" / f"{name}.py").write_text("class B: ...\n")
    alone, package = import_module("shipped_alone"), import_module("shipped_package")
    pickled = pickle.dumps([alone.A, package.B, import_module("shipped_package.inside").B, Path])

    modules = _modules_of(pickled)

    assert {"shipped_alone", "shipped_package", "shipped_package.inside", "pathlib"} <= modules
    assert _single_files(modules) == [str(tmp_path / "shipped_alone.py")]
