"""Addresses: what they say, what is refused, and that no password is ever repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from matador.errors import ConfigurationError, ConnectionFailedError
from matador.transports import RedisTransport, transport_from_url
from matador.transports.bullmq.client import BullMQAddress
from matador.transports.kit.options import read_address
from matador.transports.redis.options import RedisAddress

SECRET = "s3cr3t/#"
QUOTED = "s3cr3t%2F%23"


def redis_address(url: str, **options: Any) -> RedisAddress:
    return read_address(RedisAddress, url, options)


def test_a_server() -> None:
    url = redis_address(f"redis://me:{QUOTED}@host:7000/2?lease=60&prefix=shop")
    assert url.hosts == (("host", 7000),)
    assert (url.user, url.password, url.db) == ("me", SECRET, 2)
    assert (url.tls, url.mode, url.prefix) == (False, "streams", "shop")
    assert url.lease == 60


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis://localhost", (("localhost", 6379),)),
        ("redis://[::1]:7000", (("::1", 7000),)),
        ("rediss://:pw@h/1", (("h", 6379),)),
    ],
)
def test_the_port_is_the_usual_one_unless_given(
    url: str, hosts: tuple[tuple[str, int], ...]
) -> None:
    assert redis_address(url).hosts == hosts


def test_sentinels() -> None:
    url = redis_address("redis+sentinel://:pw@a:1,b/primary/3?sentinel_password=other")
    assert url.hosts == (("a", 1), ("b", 26379))
    assert (url.primary, url.db) == ("primary", 3)
    assert (url.password, url.sentinel_password) == ("pw", "other")
    assert "Sentinels a:1,b:26379" in url.where


def test_a_socket() -> None:
    url = redis_address("redis+unix:///run/redis.sock?db=1")
    assert (url.socket, url.db) == ("/run/redis.sock", 1)


def test_tls(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    url = redis_address(f"rediss://host?tls_ca={ca}&tls_verify=false")
    assert (url.tls, url.tls_ca, url.tls_verify) == (True, str(ca), False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?leese=1", r"unknown option 'leese'; did you mean 'lease'\?"),
        ("redis://h?lease=1&lease=2", "duplicate option"),
        ("redis://h?lease=soon", "a number of seconds"),
        ("redis://h?mode=stream", r"did you mean 'streams'\?"),
        ("redis://h/one", "number of the database"),
        ("redis://h/1/2", "number of the database"),
        ("redis://h:port", "is not a port"),
        ("redis://", "host is missing"),
        ("redis://a,b", "several hosts"),
        ("redis://h?tls_verify=false", "write rediss://"),
        ("rediss://h?tls_ca=nowhere.pem", "no file"),
        ("rediss://h?tls_verify=maybe", "true or false"),
        ("redis+sentinel://h", "primary's name"),
        ("redis+unix://", "path"),
        ("amqp://h", "not an address of Redis"),
        (f"redis://:{SECRET}@h", "%23 for .#"),
    ],
)
def test_what_is_wrong_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        redis_address(url)
    assert "s3cr3t" not in str(caught.value)


_MARKS = ("/", "?", "#", "@", "/@", "?@", "#@", "@/", "@?", ":", "[", "]", "\u2100", " ", "%", "\\")
_PASSWORDS = [
    f"{first}{mark}{second}"
    for mark in _MARKS
    for first in ("hunter", "6379", "")
    for second in ("tiger", "0", "lease=tiger", "mode=tiger", "db=tiger", "tls_ca=tiger")
]


@pytest.mark.parametrize(
    "form",
    [
        "redis://corp:{}@host:6379/0",
        "redis://:{}@host",
        "rediss://corp:{}@host?lease=5",
        "redis+sentinel://corp:{}@a,b/shop/1",
        "redis+unix://corp:{}@/run/redis.sock",
        "corp:{}@host",
    ],
)
def test_no_piece_of_a_password_is_shown_wherever_the_address_is_cut(form: str) -> None:
    read = 0
    for password in _PASSWORDS:
        shown = ""
        try:
            parsed = redis_address(form.format(password))
        except ConfigurationError as error:
            shown = f"{error!r}{error.__cause__!r}{error.__context__!r}"
        else:
            read += 1
            assert parsed.password == unquote(password)
            shown = f"{parsed!r}{parsed.where}"
        assert not [part for part in ("hunter", "tiger", "corp") if part in shown], password
    assert read < len(_PASSWORDS)


@pytest.mark.parametrize("mark", ["/", "?", "@/", "@?"])
def test_addresses_of_others_on_redis_show_no_piece_of_a_password(mark: str) -> None:
    for second in ("tiger", "0", "lease=tiger", "tls=tiger"):
        with pytest.raises(ConfigurationError) as caught:
            read_address(BullMQAddress, f"bullmq://corp:hunter{mark}{second}@host:6379/0")
        shown = f"{caught.value!r}{caught.value.__context__!r}"
        assert not [part for part in ("hunter", "tiger", "corp") if part in shown]


def test_an_address_shows_no_secret_option() -> None:
    assert "s3cr3t" not in repr(redis_address("redis+sentinel://h/p?sentinel_password=s3cr3t"))


def test_every_option_works_in_the_address_and_as_a_keyword() -> None:
    query = "mode=list&lease=7&timeout=3&heartbeat=2&prefix=shop&db=4&name=orders&tls=true"
    keywords = redis_address(
        "redis://h",
        mode="list",
        lease=7,
        timeout=3,
        heartbeat=2,
        prefix="shop",
        db=4,
        name="orders",
        tls=True,
    )
    assert redis_address(f"redis://h?{query}") == keywords


def test_other_spellings_of_tls_options_work(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    other = redis_address(f"rediss://h?tls_ca={ca}&tls_verify=no")
    assert other == redis_address(f"rediss://h?tls_ca={ca}&tls_verify=false")


@pytest.mark.parametrize("lease", [0, -1, float("inf"), float("nan"), "1"])
def test_options_are_checked(lease: object) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        RedisTransport("redis://h", lease=lease)  # pyright: ignore[reportArgumentType] - the point


def test_options_of_the_address_hold_unless_others_are_given() -> None:
    assert RedisTransport("redis://h?lease=7").capabilities.lease == 7
    assert RedisTransport("redis://h?lease=7", lease=8).capabilities.lease == 8


def test_a_transport_by_its_address() -> None:
    assert isinstance(transport_from_url("redis://localhost"), RedisTransport)
    assert isinstance(transport_from_url("rediss://localhost"), RedisTransport)
    assert isinstance(transport_from_url("redis+sentinel://a,b/primary"), RedisTransport)


async def test_no_secret_is_ever_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    url = f"redis://me:{QUOTED}@127.0.0.1:1/0"
    transport = RedisTransport(url)
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.connect()
    shown = [repr(transport), repr(redis_address(url)), str(caught.value), repr(caught.value)]
    shown += [str(caught.value.__cause__), caplog.text, repr(transport.state)]
    assert not [text for text in shown if "s3cr3t" in text]
    assert "127.0.0.1:1" in str(caught.value)
