"""One behaviour of all storages: in a folder, and on a real S3 server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.s3 import SECRET, s3_folder, s3_options

from matador.errors import ObjectStoreError
from matador.spark.runtime.arrow import pa, parquet
from matador.storage import FolderStorage, ObjectStorage, Storage, StorageOptions, open_storage


@pytest.fixture(
    params=[
        "folder",
        "objects",
        pytest.param("s3", marks=pytest.mark.broker),
    ]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield FolderStorage(str(tmp_path / "here"))
        return
    if request.param == "objects":  # delta-rs without a server
        yield ObjectStorage(
            f"memory:///{tmp_path.name}", StorageOptions("s3", {"allow_http": "true"})
        )
        return
    with s3_folder() as made:
        yield made


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.read("a") is None
    assert storage.size("a") is None
    assert storage.files() == []
    assert storage.folders() == []
    assert storage.files("b/c") == []
    with pytest.raises(FileNotFoundError):
        storage.reader("a")
    storage.delete("a")
    storage.delete_folder("b")


def test_a_file_appears_whole_when_it_is_finished(storage: Storage) -> None:
    content = bytes(range(256)) * 50_000  # more than a part of an upload
    file = storage.create("x/date=2026-11-17/big.bin")
    for start in range(0, len(content), 1 << 20):
        file.write(content[start : start + (1 << 20)])
    if not storage.is_local:
        assert storage.size("x/date=2026-11-17/big.bin") is None
    assert storage.finish("x/date=2026-11-17/big.bin", file) == len(content)
    assert storage.size("x/date=2026-11-17/big.bin") == len(content)
    assert storage.read("x/date=2026-11-17/big.bin") == content
    with storage.child("x").reader("date=2026-11-17/big.bin") as found:
        assert found.seek(-5, io.SEEK_END) == len(content) - 5
        assert found.read() == content[-5:]
        found.seek(1 << 20)
        assert found.read(3) == content[1 << 20 : (1 << 20) + 3]
    assert storage.folders() == ["x"]
    assert storage.folders("x") == ["date=2026-11-17"]
    (one,) = storage.files("x/date=2026-11-17")
    assert one[:2] == ("big.bin", len(content))


def test_replace_list_and_delete(storage: Storage) -> None:
    for name in ("b.json", "a.json", "done/c.json", ".hidden"):
        storage.write(name, b"old")
    storage.write("a.json", b"newer")
    assert storage.read("a.json") == b"newer"
    assert [(one.name, one.size) for one in storage.files()] == [("a.json", 5), ("b.json", 3)]
    assert all(one.modified > 0 for one in storage.files())
    storage.delete("a.json")
    storage.delete_folder("done")
    assert [one.name for one in storage.files()] == ["b.json"]
    assert storage.folders() == []
    storage.sync("b.json")


def test_parquet_and_lines(storage: Storage) -> None:
    storage.make()
    rows = pa.table({"n": list(range(10_000)), "text": ["x" * 20] * 10_000})
    file = storage.create("a.parquet")
    with parquet.ParquetWriter(file, rows.schema) as writer:
        writer.write_table(rows, row_group_size=1000)
    storage.finish("a.parquet", file)
    with storage.reader("a.parquet") as source:
        opened = parquet.ParquetFile(source, pre_buffer=True)
        assert opened.read(columns=["n"]).column("n").to_pylist() == list(range(10_000))
    storage.write("lines", b"first\nsecond\n" * 1000)
    with storage.reader("lines") as source:
        assert source.readline() == b"first\n"
        assert len(source.readlines()) == 1999


@pytest.mark.broker
def test_an_object_that_is_not_finished_never_appears() -> None:
    with s3_folder() as storage:
        file = storage.create("a.bin")
        file.write(b"x" * 100)
        file.close()  # as it is closed when the task that writes it fails
        del file
        assert storage.files() == []


@pytest.mark.broker
def test_what_a_store_answers_is_an_error_of_one_line_without_secrets() -> None:
    options = s3_options()
    wrong = open_storage("s3://matador/x", "lake", {**options, "aws_secret_access_key": "hunter2"})
    absent = open_storage("s3://no-such-bucket/x", "lake", options)
    for storage, reason in ((wrong, "SignatureDoesNotMatch"), (absent, "NoSuchBucket")):
        with pytest.raises(ObjectStoreError, match=reason) as raised:
            storage.files()
        said = str(raised.value)
        assert said.startswith(storage.root)
        assert not {"\n", "\x1b", SECRET, "hunter2"} & {*said, *said.split()}
        assert SECRET not in said
        assert "hunter2" not in said
        assert raised.value.__cause__ is None
    with pytest.raises(ObjectStoreError):
        wrong.write("a", b"b")
