"""S3 for tests: how the server of ``script/brokers`` is reached, and folders of their own there."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager

from tests.support.brokers import broker_url

from matador.storage import Storage, open_storage

SECRET = "matador-secret"


def s3_options() -> dict[str, str]:
    """The storage options of the server. Skips the test, or fails it in CI, if it does not run."""
    return {
        "aws_access_key_id": "matador-key",
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "aws_endpoint_url": broker_url("s3"),
    }


@contextmanager
def s3_folder() -> Generator[Storage]:
    """A folder that nobody else uses; it is deleted afterwards."""
    url = f"s3://matador/{uuid.uuid4().hex}"
    storage = open_storage(url, "tests", s3_options())
    try:
        yield storage
    finally:
        open_storage("s3://matador", "tests", s3_options()).delete_folder(url.rpartition("/")[2])
