"""Sessions of Spark Connect: created for a server's address, and distinguished from sessions with a
local Java.

The driver of such a session is on the server. This process has no ``SparkContext`` and needs no
Java. PySpark decides once per process which kind its functions are for, so the two cannot be mixed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
from collections.abc import Mapping
from typing import Any, cast

from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession, is_remote

from matador.errors import ClusterError, ConfigurationError, MissingExtraError
from matador.spark.runtime.messages import one_line

log = logging.getLogger("matador.spark")

_PACKAGE = "pyspark.sql.connect."
_ANSWER_WITHIN = 20.0  # seconds; PySpark itself would try for ten minutes
_FORM = "sc://host:15002, or sc://host:443/;use_ssl=true;token=…"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, on any platform."""
    return any(one.__module__.startswith(_PACKAGE) for one in type(spark).__mro__)


def require_java(spark: SparkSession, what: str) -> None:
    """Raise ``ConfigurationError`` for what Spark Connect cannot do."""
    if is_connect(spark):
        raise ConfigurationError(
            f"{what}, but this session is one of Spark Connect, whose driver is on the server; use "
            "a session with a master, such as spark_session('spark://host:7077')"
        )


def checked_session(spark: SparkSession) -> SparkSession:
    """A session of the user, if PySpark's functions in this process are for its kind.

    Raises:
        ConfigurationError: it is one of Spark Connect, and they are not.
    """
    if is_connect(spark) and not is_remote():
        raise ConfigurationError(
            "PySpark does not know that this session is one of Spark Connect: make it with "
            "SparkSession.builder.remote('sc://…').getOrCreate(), in a process without another one"
        )
    return spark


def connect(remote: str, app_name: str, config: Mapping[str, str] | None) -> SparkSession:
    """A new session on a server. Its address may contain a token, so errors name the host only.

    Raises:
        ConfigurationError: the address, or a setting, is invalid.
        MissingExtraError: the client's libraries are not installed.
        ClusterError: the server does not answer, or refuses the connection.
    """
    if not remote.startswith("sc://"):
        raise ConfigurationError(f"remote is the address of a Spark Connect server: {_FORM}")
    where = _await_server(remote)
    builder: Any = SparkSession.builder
    try:
        session = builder.remote(remote).appName(app_name).config(map=_SETTINGS).getOrCreate()
    except PySparkException as error:
        raise ClusterError(f"no session on {where}: {one_line(str(error))}") from error
    try:
        version: str = session.version
        _apply(session, config or {})
    except BaseException as error:
        with contextlib.suppress(Exception):
            session.stop()  # else the next call would find it
        if isinstance(error, PySparkException):
            raise ClusterError(f"no session on {where}: {one_line(str(error))}") from error
        raise
    log.info("connected to Spark %s on %s", version, where)
    return session


def _await_server(remote: str) -> str:
    """Wait until the server answers; returns its name for messages."""
    try:
        client: Any = importlib.import_module("pyspark.sql.connect.client")
        grpc: Any = importlib.import_module("grpc")
    except (ImportError, PySparkImportError) as error:
        raise MissingExtraError("Spark Connect", "spark-connect") from error
    try:
        builder = client.DefaultChannelBuilder(remote)
        where, channel = str(builder.endpoint), builder.toChannel()
    except (PySparkException, ValueError) as error:
        raise ConfigurationError(
            f"the address of the Spark Connect server is invalid: use {_FORM}"
        ) from error
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_WITHIN)
    except grpc.FutureTimeoutError as error:
        raise ClusterError(
            f"no Spark Connect server answers on {where} within {_ANSWER_WITHIN:g} s; check the "
            "address, and use_ssl=true if it expects TLS"
        ) from error
    finally:
        channel.close()
    return where


def _apply(session: SparkSession, config: Mapping[str, str]) -> None:
    for name, value in config.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise ConfigurationError(
                f"the server does not accept the setting {name}: {one_line(str(error))}"
            ) from error


def own_address(spark: SparkSession) -> str | None:
    """The address of this machine on the way to the server, for tasks that connect back."""
    client: Any = cast("Any", spark).client
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((client.host, 9))  # sends nothing: it only chooses the way
            return str(probe.getsockname()[0])
    except (AttributeError, OSError):
        return None
