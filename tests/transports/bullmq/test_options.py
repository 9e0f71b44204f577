"""Addresses: what they may say, and what is said about wrong ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.transports import BullMQTransport, transport_from_url
from matador.transports.bullmq.client import BullMQAddress
from matador.transports.kit.options import read_address


def bullmq_address(url: str, **options: Any) -> BullMQAddress:
    return read_address(BullMQAddress, url, options)


def test_an_address_is_taken_apart() -> None:
    url = bullmq_address(
        "bullmq://me:p%40ss@host:7000/3?prefix=jobs&lease=60&tls=true&tls_verify=false"
    )
    assert (url.hosts, url.db, url.prefix) == ((("host", 7000),), 3, "jobs")
    assert (url.user, url.password) == ("me", "p@ss")
    assert (url.tls, url.tls_verify) == (True, False)
    assert url.lease == 60
    assert "p@ss" not in repr(url)


def test_the_defaults_are_those_of_bullmq() -> None:
    url = bullmq_address("bullmq://localhost")
    assert (url.hosts, url.db, url.prefix) == ((("localhost", 6379),), 0, "bull")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", "not an address of BullMQ"),
        ("bullmq:///0", "host is missing"),
        ("bullmq://localhost:99999", "port"),
        ("bullmq://localhost/jobs", "number of the database"),
        ("bullmq://localhost?leese=1", "did you mean"),
        ("bullmq://localhost?lease=long", "a number of seconds"),
        ("bullmq://localhost?lease=1&lease=2", "duplicate option"),
        ("bullmq://localhost?prefix=", "prefix must not be empty"),
        ("bullmq://localhost?tls=perhaps", "true or false"),
        ("bullmq://localhost?tls_verify=false", "tls=true"),
        ("bullmq://localhost?tls=1&tls_ca=nowhere.pem", "no file"),
        ("bullmq://localhost/0#ss", "%23"),
    ],
)
def test_a_wrong_address_is_explained(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        bullmq_address(url)


def test_every_option_works_in_the_address_and_as_a_keyword() -> None:
    query = "lease=7&timeout=3&heartbeat=2&prefix=jobs&db=4&name=mail&tls=true&tls_verify=false"
    keywords = bullmq_address(
        "bullmq://h",
        lease=7,
        timeout=3,
        heartbeat=2,
        prefix="jobs",
        db=4,
        name="mail",
        tls=True,
        tls_verify=False,
    )
    assert bullmq_address(f"bullmq://h?{query}") == keywords


async def test_the_transport_is_found_by_its_scheme() -> None:
    transport = transport_from_url("bullmq://localhost?lease=7")
    assert isinstance(transport, BullMQTransport)
    assert transport.capabilities.lease == 7


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    program = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'bullmq' else find(name, *more)\n"
        "from matador.transports import transport_from_url\n"
        "try: transport_from_url('bullmq://localhost')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "MissingExtraError" in run.stdout
    assert "pip install 'matador-events[bullmq]'" in run.stdout
