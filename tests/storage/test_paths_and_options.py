"""URLs and options of stores: what is accepted, what is refused, and that no secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from matador.errors import ConfigurationError, ObjectStoreError
from matador.storage import FolderStorage, ObjectStorage, StorageOptions, open_storage
from matador.storage.objects import store_error
from matador.storage.paths import remote_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://shop/lake", "s3://shop/lake"),
        ("s3a://shop/lake/", "s3://shop/lake"),
        ("s3:/shop/lake", "s3://shop/lake"),  # as pathlib leaves it
        ("gs://shop//a/b", "gs://shop/a/b"),
        ("az://container/lake", "az://container/lake"),
        ("abfs://container/lake", "abfs://container/lake"),
        (
            "abfss://container@account.dfs.core.windows.net/lake",
            "abfss://container@account.dfs.core.windows.net/lake",
        ),
        ("hdfs://name-node:8020/lake", "hdfs://name-node:8020/lake"),
        ("S3://shop", "s3://shop"),
    ],
)
def test_urls_of_stores(given: str, url: str) -> None:
    assert str(remote_url(given, "lake")) == url
    made = open_storage(given, "lake")
    assert isinstance(made, ObjectStorage)
    assert (made.root, made.is_local) == (url, False)
    assert made.child("events").root == f"{url}/events"
    assert made.child("a").child("b").root == f"{url}/a/b"


@pytest.mark.parametrize(
    "given",
    [
        "s3://key:hunter2@shop/lake",
        "gs://user@shop/lake",
        "abfss://container:hunter2@account/lake",
        "s3://shop/lake?secret=hunter2",
        "s3://shop/../hunter2",
        "s3://",
    ],
)
def test_a_url_with_more_than_a_place_is_refused_without_quoting_it(given: str) -> None:
    with pytest.raises(ConfigurationError, match="storage options") as raised:
        open_storage(given, "lake")
    assert "hunter2" not in str(raised.value)


def test_local_folders(tmp_path: Path) -> None:
    for given in (tmp_path, str(tmp_path), tmp_path.as_uri()):
        assert open_storage(given, "lake") == FolderStorage(str(tmp_path))
    with pytest.raises(ConfigurationError, match="this is a local folder"):
        open_storage(tmp_path, "lake", {"aws_region": "eu-central-1"})
    with pytest.raises(ConfigurationError, match="ftp:// is not supported"):
        open_storage("ftp://host/lake", "lake")


@pytest.mark.parametrize(
    ("scheme", "option"),
    [
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("gs", "google_service_account"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("abfss", "azure_storage_sas_token"),
        ("hdfs", "dfs.client.failover.resolve-needed"),
    ],
)
def test_options_of_each_store(scheme: str, option: str) -> None:
    made = StorageOptions(scheme, {option: "hunter2"})
    assert list(made.values()) == ["hunter2"]
    assert "hunter2" not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(pickle.loads(pickle.dumps(made))) == hash(made)
    assert made.hidden_in("the key hunter2 is wrong") == "the key … is wrong"


@pytest.mark.parametrize(
    ("scheme", "option", "said"),
    [
        ("s3", "aws_acces_key_id", "did you mean 'aws_access_key_id'"),
        ("s3", "azure_storage_account_key", "unknown for s3://"),
        ("gs", "aws_region", "unknown for gs://"),
        ("hdfs", "user", "unknown for hdfs://"),
    ],
)
def test_an_unknown_option_is_refused_without_its_value(
    scheme: str, option: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        StorageOptions(scheme, {option: "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_nothing_that_is_printed_or_raised_has_a_secret() -> None:
    storage = open_storage("s3://shop/lake", "lake", {"aws_secret_access_key": "hunter2"})
    assert "hunter2" not in repr(storage)
    assert "hunter2" not in repr(storage.child("events"))
    answer = (
        "Generic S3 error\n \x1b[31m↳\x1b[0m GET https://s3/shop?sig=hunter2 failed\n"
        "  ↳ <Error><Code>AccessDenied</Code><Message>No.</Message><Key>hunter2</Key></Error>"
    )
    made = store_error(OSError(answer), storage.options, storage.root)
    assert isinstance(made, ObjectStoreError)
    assert str(made) == (
        "s3://shop/lake: Generic S3 error; GET https://s3/shop failed; AccessDenied: No."
    )


def test_a_storage_is_sent_to_executors_with_its_options() -> None:
    storage = open_storage("gs://shop/lake", "lake", {"google_service_account_key": "hunter2"})
    again = pickle.loads(pickle.dumps(storage.child("events")))
    assert again == storage.child("events")
    assert again.options["google_service_account_key"] == "hunter2"
    assert hash(again) == hash(storage.child("events"))
    assert again != open_storage("gs://shop/lake/events", "lake")


def test_addresses_for_spark() -> None:
    assert open_storage("s3://shop/lake", "lake").spark_url("a.parquet") == (
        "s3a://shop/lake/a.parquet"
    )
    assert open_storage("hdfs://n:1/lake", "lake").child("events").spark_url("a=1/b") == (
        "hdfs://n:1/lake/events/a=1/b"
    )


def test_stores_are_reached_without_tls_if_the_address_says_so_and_hdfs_has_no_such_option() -> (
    None
):
    assert dict(open_storage("s3://shop", "lake").options) == {"allow_http": "true"}
    assert dict(open_storage("hdfs://n:1/lake", "lake").options) == {}
    given = {"allow_http": "false", "aws_region": "eu-central-1"}
    storage = open_storage("s3://shop", "lake", given)
    assert (dict(storage.options), len(storage.options)) == (given, 2)
    assert isinstance(storage, ObjectStorage)
    assert storage.given == storage.options
