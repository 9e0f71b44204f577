"""Addresses and options: one reader for all transports."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.model.backoff import ReconnectBackoff
from matador.transports.kit.options import (
    Scheme,
    ServerAddress,
    choice,
    duration,
    number,
    read_address,
    text,
    tls_context,
    whole,
)


@dataclass(frozen=True, kw_only=True)
class TinyAddress(ServerAddress):
    kind = "Tiny"
    schemes = {
        "tiny": Scheme(1000),
        "tinys": Scheme(1001, tls=True, several=True),
        "tiny+unix": Scheme(0),
    }
    form = "tiny://user:password@host:1000/db"

    db: str = "none"
    lease: float = duration(30.0, minimum=0.1)
    window: int = whole(10, minimum=1)
    mode: str = choice("fast", ["fast", "SAFE"])
    token: str | None = text(None, secret=True)
    label: str = text("none", empty=False)
    share: float = number(0.5, minimum=0, maximum=1)

    @classmethod
    def _of_path(cls, scheme: str, path: str) -> dict[str, Any]:
        return {"db": path} if path else {}


def read(url: str, **given: Any) -> TinyAddress:
    return read_address(TinyAddress, url, given)


def test_an_address_is_read_with_its_options() -> None:
    address = read("tiny://me:p%40ss@here:7/stock?lease=5&window=3&mode=safe&token=t")
    assert address.hosts == (("here", 7),)
    assert (address.user, address.password, address.db) == ("me", "p@ss", "stock")
    assert (address.lease, address.window, address.mode) == (5.0, 3, "SAFE")
    assert address.token == "t"


def test_defaults_and_usual_ports() -> None:
    assert read("tiny://here") == TinyAddress(hosts=(("here", 1000),))
    assert read("tinys://a,b:9,[::1]:8").hosts == (("a", 1001), ("b", 9), ("::1", 8))


@pytest.mark.parametrize(
    ("query", "keywords"),
    [
        ("lease=60", {"lease": 60}),
        ("lease=60", {"lease": timedelta(minutes=1)}),
        ("window=4", {"window": 4}),
        ("mode=SAFE", {"mode": "safe"}),
        ("token=x", {"token": "x"}),
        ("tls=true", {"tls": True}),
    ],
)
def test_what_the_address_can_say_a_keyword_can_too(query: str, keywords: dict[str, Any]) -> None:
    assert read(f"tiny://here?{query}") == read("tiny://here", **keywords)


def test_a_keyword_wins_over_the_address_and_none_is_not_given() -> None:
    assert read("tiny://here?lease=1", lease=2).lease == 2
    assert read("tiny://here?lease=1", lease=None).lease == 1


@pytest.mark.parametrize("yes", ["true", "1", "yes", "on", "TRUE"])
def test_truths_have_one_reading(yes: str) -> None:
    assert read(f"tinys://here?tls_verify={yes}").tls_verify is True


@pytest.mark.parametrize("name", ["cafile", "certfile", "keyfile", "verify", "server_name"])
def test_an_option_has_one_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown option '{name}'"):
        read(f"tinys://here?{name}=no")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("other://here", "not an address of Tiny; write tiny://"),
        ("tiny://here?leese=1", "Tiny: unknown option 'leese'; did you mean 'lease'?"),
        ("tiny://here?tls_caa=1", "did you mean 'tls_ca'?"),
        ("tiny://here?lease=1&lease=2", "duplicate option 'lease'"),
        ("tinys://here?tls_verify=no&tls_verify=no", "duplicate option 'tls_verify'"),
        ("tiny://here?lease=soon", "Tiny: lease must be a number of seconds, got 'soon'"),
        ("tiny://here?lease=0", "Tiny: lease must be at least 0.1 seconds"),
        ("tiny://here?lease=nan", "finite"),
        ("tiny://here?window=0.5", "Tiny: window must be a whole number"),
        ("tiny://here?window=0", "Tiny: window must be at least 1"),
        ("tiny://here?mode=fats", "Tiny: mode must be fast or SAFE, got 'fats'; did you mean"),
        ("tinys://here?tls_verify=maybe", "true or false"),
        ("tiny://here?tls_verify=no", "tls_verify needs TLS; write tinys://"),
        ("tinys://here?tls=false", "contradicts tinys://"),
        ("tinys://here?tls_ca=nowhere.pem", "there is no file 'nowhere.pem'"),
        ("tiny://", "the host is missing"),
        ("tiny://a,b", "several hosts"),
        ("tinys://a,,b", "not a host and a port"),
        ("tiny://me:pw@here:65536", "not a host and a port"),
        ("tiny://me:pw@here:0", "not a host and a port"),
        ("tiny+unix://here/x", "a socket has no host; write tiny://"),
        ("tiny://here?label=", "label must not be empty"),
        ("tiny://here?share=1.1", "share must be from 0 to 1, got 1.1"),
        ("tiny://here?share=-0.1", "share must be from 0 to 1"),
        ("tiny://here?share=half", "share must be a number"),
        ("tiny://here?tls_key=KEY", "there is no file 'KEY'"),
        ("tiny://here?reconnect_delay=3", "reconnect_max_delay (2 s) must be at least"),
    ],
)
def test_mistakes_are_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(url)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"lease": "60"},
        {"share": True},
        {"share": "1"},
        {"share": 2},
        {"window": True},
        {"tls": "yes"},
        {"token": 5},
        {"nope": 1},
    ],
)
def test_keywords_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"Tiny: .*{next(iter(given))}"):
        read("tiny://here", **given)


def test_no_secret_is_shown() -> None:
    address = read("tiny://me:hunter2@here?token=hunter2")
    assert "hunter2" not in f"{address!r}{address}{address.listed_hosts}"
    with pytest.raises(ConfigurationError) as caught:
        read("tiny://here", token=["hunter2"])
    assert "hunter2" not in str(caught.value)


def test_bounds_are_allowed_themselves() -> None:
    assert (read("tiny://here?share=0").share, read("tiny://here?share=1").share) == (0.0, 1.0)
    assert read("tiny://here:65535").hosts == (("here", 65535),)
    assert read("tiny://here?reconnect_delay=2").backoff.base_delay == 2.0


def test_the_waits_between_attempts_to_reconnect_are_those_of_the_address() -> None:
    given = (
        "reconnect=linear&reconnect_delay=0.5&reconnect_max_delay=7"
        "&reconnect_multiplier=3&reconnect_attempts=4"
    )
    assert read(f"tiny://here?{given}").backoff == ReconnectBackoff(
        "linear", base_delay=0.5, max_delay=7.0, multiplier=3.0, max_attempts=4
    )


def test_an_address_without_a_path_refuses_one() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pathless(ServerAddress):
        kind = "Pathless"
        schemes = {"less": Scheme(1)}
        form = "less://host"

    assert read_address(Pathless, "less://here/").hosts == (("here", 1),)
    with pytest.raises(ConfigurationError, match="the address has a path; write less://host"):
        read_address(Pathless, "less://here/there")


def test_certificates_are_verified_unless_the_address_says_otherwise() -> None:
    careful = tls_context(read("tinys://here"))
    assert (careful.check_hostname, careful.verify_mode) == (True, ssl.CERT_REQUIRED)
    careless = tls_context(read("tinys://here?tls_verify=no"))
    assert (careless.check_hostname, careless.verify_mode) == (False, ssl.CERT_NONE)
