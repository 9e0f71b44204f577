"""However an address is written, the password in it is never repeated."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from matador.errors import MatadorError
from matador.transports import (
    BullMQTransport,
    MultiTransport,
    RabbitMQTransport,
    RedisTransport,
    SqliteTransport,
    transport_from_url,
)
from matador.transports.base import Transport
from matador.transports.credentials import split_url, without_secrets

SCHEMES = (
    "amqp",
    "amqps",
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+unix",
    "bullmq",
    "sqlite",
    "memory",
    "ampq",  # misspelt
    "AMQP",
    "kafka",  # unknown
)

# {p}: the password.
FORMS = (
    "{s}://me:{p}@host:5672/shop",
    "{s}://me:{p}@host/shop?lease=5",
    "{s}://me:{p}@[::1]:5672/0",
    "{s}://:{p}@host/0",
    "{s}://me:{p}@one,two/primary/0",
    "{s}://me:{p}@host/0?nope=1",
    "{s}://me:{p}@host:port/0",
    "{s}://me:{p}@host:99999/0",
    "{s}://me:{p}@host/0?lease=soon",
    "{s}://me:{p}@[host/0",
    "{s}://me:{p}@host/0#end",
    "{s}://me:{p}@/0",
    "{s}://me:{p}@",
    "{s}://me:{p}",  # the host forgotten
    "{s}://:{p}",
    "{s}:///me:{p}@host/0",
    "{s}:/me:{p}@host/0",
    "{s}:me:{p}@host/0",
    "{s}//me:{p}@host/0",
    "me:{p}@host/0",
    "me:{p}://host/0",
    "{s}://me:{p}@host\n",
    " {s}://me:{p}@host",
    "{p}",
)

# What stands in the way of a parser, more often than chance would have it.
passwords = st.text(
    st.sampled_from("/?#@:[]%&=,;'\"\\ ") | st.sampled_from(string.printable[:95]),
    min_size=6,
    max_size=20,
).filter(lambda text: not text.strip().isdecimal() and text == text.strip())


def _written(form: str, scheme: str) -> str:
    return form.replace("{s}", scheme)


addresses = st.builds(_written, st.sampled_from(FORMS), st.sampled_from(SCHEMES))

LETTERS = string.ascii_letters
OTHER_LETTERS = str.maketrans(LETTERS, LETTERS[1:] + LETTERS[0])
"""Makes another password of the same form."""

MAKERS: tuple[Callable[[str], object], ...] = (
    transport_from_url,
    RabbitMQTransport,
    RedisTransport,
    BullMQTransport,
    SqliteTransport.from_url,
    split_url,
)


def said_of(error: BaseException | None) -> Iterator[str]:
    """An error and all that led to it, whether a traceback shows it or not."""
    while error is not None:
        yield str(error)
        yield repr(error)
        yield repr(error.args)
        error = error.__cause__ or error.__context__


def shown_by(transport: Transport) -> Iterator[str]:
    yield from (repr(transport), str(transport), transport.name, repr(transport.state))
    yield repr(MultiTransport([transport]))


def everything_shown(make: Callable[[str], object], url: str) -> list[str]:
    try:
        made = make(url)
    except MatadorError as error:  # of no other kind: urllib's would repeat the address
        return list(said_of(error))
    return list(shown_by(made)) if isinstance(made, Transport) else []


@settings(max_examples=500)
@given(addresses, passwords)
def test_no_way_to_write_an_address_gives_the_password_away(form: str, password: str) -> None:
    if form.endswith("{p}"):  # "12/x" is a port and a path then, and "x@y" has a host, to anybody
        assume(not re.match(r"\d{1,5}([/?,]|$)", password) and not re.search("@|://", password))
    other = password.translate(OTHER_LETTERS)
    assume(other != password)
    for make in MAKERS:
        # Nothing changes with the password: so not even a part of it is shown.
        shown = everything_shown(make, form.replace("{p}", password))
        assert shown == everything_shown(make, form.replace("{p}", other))


@given(passwords.filter(lambda text: " " not in text), st.sampled_from(SCHEMES))
def test_a_text_of_others_is_masked(password: str, scheme: str) -> None:
    url = f"{scheme}://me:{password}@host:5672/shop"
    for text in (f"cannot reach {url}: refused", url, f"{url}\n{url}", f"<{url}>"):
        masked = without_secrets(text)
        assert password not in masked
        assert "host:5672/shop" in masked


@given(passwords.filter(lambda text: not {"'", '"', "\\"} & set(text)))
def test_a_quoted_address_may_have_blanks_in_its_password(password: str) -> None:
    line = f"""    app = Matador("amqp://me:{password}@host/shop", schema=it)  # bob@example.com"""
    masked = without_secrets(line)
    assert password not in masked
    assert masked.endswith('@host/shop", schema=it)  # bob@example.com')


@pytest.mark.parametrize(
    "text",
    [
        "could not connect to amqp://rabbit-1:5672,rabbit-2:5672/shop: refused",
        "see https://docs.example.com:8080/a and mail bob@example.com",
        "http://[::1]:15672/api",
        "12:30 shop.py:17: ValueError: no",
        "matador.worker: a message of shop.events is malformed",
        "amqp://me:***@host",
    ],
)
def test_what_holds_no_password_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("amqp://me:secret", "amqp://me:***"),
        ("amqp:///me:secret@host", "amqp:///me:***@host"),
        ("me:secret@host refused", "me:***@host refused"),
        ("redis://h?sentinel_password=secret&db=1", "redis://h?sentinel_password=***&db=1"),
        ("redis://:12/34@host", "redis://:***@host"),
    ],
)
def test_what_is_masked(text: str, masked: str) -> None:
    assert without_secrets(text) == masked


@pytest.mark.parametrize("piece", ["a://b:", "a://b:'", "a.", "'a://b:", "a:", "a:a@", "token="])
def test_a_hostile_text_takes_no_longer_than_its_length(piece: str) -> None:
    def takes(length: int) -> float:
        text = piece * (length // len(piece))
        begun = time.process_time()
        without_secrets(text)
        return time.process_time() - begun

    takes(1000)
    assert takes(200_000) < 60 * takes(20_000) + 0.05  # a square would be 100 times as long
