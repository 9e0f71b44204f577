"""Addresses: what they mean, and what is said about those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from matador.errors import ConfigurationError
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.options import SqliteOptions, read_url


def test_three_slashes_are_relative_four_absolute() -> None:
    assert read_url("sqlite:///data/shop.db") == {"path": "data/shop.db"}
    assert read_url("sqlite:////var/shop.db") == {"path": "/var/shop.db"}
    assert SqliteTransport.from_url("sqlite:///shop.db").path == Path.cwd() / "shop.db"


def test_options() -> None:
    found = read_url("sqlite:///s.db?synchronous=normal&lease=60&busy_timeout=0.5")
    assert SqliteOptions(**found) == SqliteOptions(
        path="s.db", synchronous="NORMAL", lease=60.0, busy_timeout=0.5
    )
    assert SqliteTransport.from_url("sqlite:///s.db?lease=60").capabilities.lease == 60.0


def test_what_the_address_can_say_a_keyword_can_too() -> None:
    transport = SqliteTransport.from_url("sqlite:///s.db?lease=60", lease=5, name="shop")
    assert (transport.capabilities.lease, transport.name) == (5.0, "shop")
    assert SqliteTransport.from_url("sqlite:///s.db?name=shop").name == "shop"
    with pytest.raises(ConfigurationError, match="did you mean 'lease'"):
        SqliteTransport.from_url("sqlite:///s.db", leese=5)


def test_a_path_may_have_escaped_characters() -> None:
    assert read_url("sqlite:///a%20b%23c%3F.db")["path"] == "a b#c?.db"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite:///s.db?synchronus=FULL", "did you mean 'synchronous'"),
        ("sqlite:///s.db?leese=3", "did you mean 'lease'"),
        ("sqlite:///s.db?lease=soon", "lease must be a number of seconds"),
        ("sqlite:///s.db?lease=1&lease=2", "duplicate option 'lease'"),
        ("sqlite:///s.db?synchronous=OFF", "FULL or NORMAL"),
        ("sqlite:///s.db#top", "%23"),
        ("sqlite://shop.db", "three slashes"),
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("postgres:///s.db", "not an address of SQLite"),
        ("sqlite:///s.db?lease=-1", "lease must be at least"),
        ("sqlite:///s.db?lease=nan", "lease must be"),
    ],
)
def test_what_cannot_be(url: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        SqliteTransport.from_url(url)


def test_a_transport_without_a_file_points_to_the_one_in_memory() -> None:
    with pytest.raises(ConfigurationError, match="MemoryTransport"):
        SqliteTransport(":memory:")


def test_repr_shows_path_and_state(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "shop.db")
    assert repr(transport) == f"SqliteTransport('{tmp_path}/shop.db', disconnected)"
