"""Whether Spark itself can read an object store: the connector of the store must be installed."""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from matador.spark.runtime.messages import without_logged_queries
from matador.storage import ObjectStorage

_CLASSES = {
    "s3": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "gs": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "abfs": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "abfss": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    "hdfs": "org.apache.hadoop.hdfs.DistributedFileSystem",
}
_S3A = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
    "aws_region": "fs.s3a.endpoint.region",
    "aws_default_region": "fs.s3a.endpoint.region",
    "aws_endpoint_url": "fs.s3a.endpoint",
}
_known: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()
_NO_MATTER = {"allow_http", "aws_allow_http", "aws_conditional_put"}


def connector_options(spark: SparkSession, storage: ObjectStorage) -> dict[str, str] | None:
    """The options with which Spark's own connector reads a store; None if it cannot.

    It cannot without the connector, or if an option was given that has no counterpart there.
    """
    made: dict[str, str] = {}
    for name, value in storage.given.items():
        if storage.scheme == "s3" and name in _S3A:
            made[_S3A[name]] = value
        elif name not in _NO_MATTER:
            return None
    if storage.scheme == "s3":  # the connector does not know these, which all others do
        for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
            if value := os.environ.get(name):
                made.setdefault(_S3A[name.lower()], value)
    if "fs.s3a.endpoint" in made:
        made["fs.s3a.path.style.access"] = "true"
        made["fs.s3a.connection.ssl.enabled"] = str(made["fs.s3a.endpoint"][:5] == "https").lower()
    if "fs.s3a.session.token" in made:
        made["fs.s3a.aws.credentials.provider"] = (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        )
    found = _CLASSES.get(storage.scheme)
    return made if found is not None and _has_class(spark, found) else None


def _has_class(spark: SparkSession, name: str) -> bool:
    """Whether the session has a file system of Hadoop. Asked in SQL: Spark Connect has no Java."""
    known = _known.setdefault(spark, {})
    if name not in known:
        try:
            with without_logged_queries():
                spark.sql(f"SELECT reflect('{name}', 'getGlobalStorageStatistics')").collect()
            known[name] = True
        except AnalysisException:  # it is not there
            known[name] = False
        except Exception:  # noqa: BLE001 - the query may be forbidden, or fail now
            return False
    return known[name]
