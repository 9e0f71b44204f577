"""Addresses: what they may say, and what is said about wrong ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from matador.errors import ConfigurationError
from matador.transports import BullMQTransport, transport_from_url
from matador.transports.bullmq.url import parse_url


def test_an_address_is_taken_apart() -> None:
    url = parse_url("bullmq://me:p%40ss@host:7000/3?prefix=jobs&lease=60&tls=true&tls_verify=false")
    assert (url.host, url.port, url.db, url.prefix) == ("host", 7000, 3, "jobs")
    assert (url.username, url.password) == ("me", "p@ss")
    assert (url.tls, url.tls_verify) == (True, False)
    assert url.seconds == {"lease": 60.0}
    assert "p@ss" not in repr(url)


def test_the_defaults_are_those_of_bullmq() -> None:
    url = parse_url("bullmq://localhost")
    assert (url.port, url.db, url.prefix) == (6379, 0, "bull")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", "not a BullMQ address"),
        ("bullmq:///0", "host is missing"),
        ("bullmq://localhost:99999", "port"),
        ("bullmq://localhost/jobs", "must be a number"),
        ("bullmq://localhost?leese=1", "did you mean"),
        ("bullmq://localhost?lease=long", "must be seconds"),
        ("bullmq://localhost?lease=1&lease=2", "twice"),
        ("bullmq://localhost?prefix=", "prefix is empty"),
        ("bullmq://localhost?tls=perhaps", "true or false"),
        ("bullmq://localhost?tls_verify=false", "tls=true"),
        ("bullmq://localhost?tls=1&tls_ca=nowhere.pem", "no file"),
        ("bullmq://localhost/0#ss", "%23"),
    ],
)
def test_a_wrong_address_is_explained(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_url(url)


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
