"""The pieces of the data source that need no Spark: offsets, typed values, options."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.spark.journal_files import lines, sent

from matador.errors import ConfigurationError
from matador.spark import Lake
from matador.spark.dataframes.runner import dead_batches, run_dataframe_subscribers
from matador.spark.report import Report
from matador.spark.report.findings import Findings
from matador.spark.runtime.arrow import arrow_schema, pa
from matador.spark.runtime.payload_columns import TypedColumn
from matador.spark.source.options import read_options, write_options
from matador.spark.source.readers import journal_folder
from matador.spark.source.rows import RecordRows, Shape, full_schema
from matador.spark.source.segment_offsets import Seen


def segments(*names: str) -> list[Path]:
    return [Path(f"20261115T120000-{name}.jsonl") for name in names]


def test_a_time_that_cannot_be_takes_no_other_record_along() -> None:
    schema = arrow_schema(full_schema(None))
    records = [sent(1), sent(2, created_at=2**70), sent(3, recorded_at=-1), sent(4)]
    (good, bad) = RecordRows(Shape(schema)).batches(lines(records), "a.jsonl")
    assert good.column("id").to_pylist() == [sent(1).id, sent(4).id]
    assert bad.column("decode_error").to_pylist() == ["a time is before 1970 or after 9999"] * 2
    assert bad.column("raw").to_pylist()[0] == lines([records[1]])[:-1]


@pytest.mark.parametrize("url", ["s3a://b/x", "hdfs://n/x", "dbfs:/x"])
def test_nothing_is_kept_where_it_cannot_be(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda: Report(Findings("lake", datetime.now(UTC))).html(url),
        lambda: journal_folder(read_options({"journal": url})),
        lambda: run_dataframe_subscribers([], journal=url, checkpoint=tmp_path),
        lambda: run_dataframe_subscribers([], journal=tmp_path, checkpoint=url),
        lambda: dead_batches(url),
    ):
        with pytest.raises(ConfigurationError, match="is not supported, only local paths"):
            make()
    assert list(tmp_path.iterdir()) == []
    assert Lake(f"file://{tmp_path}/lake").path == tmp_path / "lake"


def test_segments_of_one_writer_are_ranges_whatever_their_order() -> None:
    seen = Seen().plus(segments("a-000002", "b-x-000001", "a-000001", "a-000004"))
    assert seen.as_offset() == {"a": [[1, 2], [4, 4]], "b-x": [[1, 1]]}
    assert Seen.from_offset(seen.as_offset()).as_offset() == seen.as_offset()


def test_a_segment_that_appears_late_is_new() -> None:
    seen = Seen().plus(segments("a-000001", "a-000003"))
    late = segments("a-000001", "a-000002", "a-000003", "a-000004")
    assert seen.new(late) == segments("a-000002", "a-000004")
    later = seen.plus(segments("a-000002"))
    assert [one for one in seen.new(late) if one in later] == segments("a-000002")
    assert later.as_offset() == {"a": [[1, 3]]}


def test_a_writer_whose_segments_are_gone_is_forgotten_but_not_in_an_empty_folder() -> None:
    seen = Seen().plus(segments("a-000001", "b-000001"))
    assert seen.without_gone(segments("b-000001")).as_offset() == {"b": [[1, 1]]}
    assert seen.without_gone([]) is seen


def test_files_of_other_names_are_segments_too() -> None:
    seen = Seen().plus([Path("copied.jsonl")])
    assert Path("copied.jsonl") in seen
    assert Path("other.jsonl") not in seen


def test_payloads_become_typed_values_and_what_does_not_fit_is_null(spark: SparkSession) -> None:
    assert spark is not None  # a schema as text is read by Java
    struct = StructType.fromDDL(
        "n bigint, f double, b boolean, s string, d decimal(38,18), t timestamp, day date, "
        "raw binary, items array<bigint>, by_name map<string,bigint>, in struct<x: bigint>"
    )
    good = (
        b'{"n":1,"f":2,"b":true,"s":{"any":[1]},"d":"1.5","t":"2026-11-15T12:00:00Z",'
        b'"day":"2026-11-15","raw":"AAE=","items":[1,"x"],"by_name":{"k":7},"in":{"x":3,"y":4}}'
    )
    bad = b'{"n":"1","f":"x","b":1,"d":"much","t":"soon","day":1,"raw":"?","items":{},"in":[]}'
    assert isinstance(struct, StructType)
    kind = arrow_schema(StructType().add("data", struct)).field("data").type
    rows = TypedColumn(struct).make([good, bad, None, b"not json"], kind).to_pylist()
    assert rows[0] == {
        "n": 1,
        "f": 2.0,
        "b": True,
        "s": '{"any":[1]}',
        "d": Decimal("1.5"),
        "t": datetime(2026, 11, 15, 12, tzinfo=UTC),
        "day": date(2026, 11, 15),
        "raw": b"\x00\x01",
        "items": [1, None],
        "by_name": [("k", 7)],
        "in": {"x": 3},
    }
    assert set(rows[1].values()) == {None}
    assert rows[2:] == [None, None]
    assert pa.types.is_struct(kind)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "sqlite:///x.db", "quue": "q"}, "unknown option 'quue'; did you mean 'queue'?"),
        ({"url": "sqlite:///x.db"}, "nothing to read"),
        ({"queue": "q"}, "no broker; set option"),
        ({"journal": "j", "queue": "q"}, "'queue' cannot be combined with 'journal'"),
        (
            {"url": "u", "queue": "q", "max_rows": "many"},
            "max_rows must be a positive whole number",
        ),
        ({"path": "journal/"}, "take no path"),
    ],
)
def test_wrong_read_options_are_one_clear_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options(options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_write_needs_its_application() -> None:
    with pytest.raises(ConfigurationError, match="no application"):
        write_options({"event": "parcel.sent"})
    with pytest.raises(ConfigurationError, match="did you mean 'write_id'"):
        write_options({"app": "a:b", "writeid": "1"})


def test_options_do_not_show_their_url() -> None:
    options = read_options({"url": "redis://ann:secret@host/1", "queue": "q"})
    assert "secret" not in repr(options)
