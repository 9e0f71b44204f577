"""Texts of errors, whatever the errors are like."""

from __future__ import annotations

import asyncio

import pytest

from matador.model.text import error_text, loggable
from matador.observe.signatures import signature_text


class Silent(Exception):
    """Its ``__str__`` raises something."""

    def __init__(self, raises: BaseException) -> None:
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises


@pytest.mark.parametrize("raises", [ValueError(), asyncio.CancelledError(), GeneratorExit()])
def test_an_error_that_says_nothing_is_named(raises: BaseException) -> None:
    assert error_text(Silent(raises)) == "Silent"
    assert loggable(Silent(raises)) is None


@pytest.mark.parametrize("raises", [KeyboardInterrupt(), SystemExit()])
def test_what_ends_the_process_still_does(raises: BaseException) -> None:
    with pytest.raises(type(raises)):
        error_text(Silent(raises))


def test_a_good_error_is_shown() -> None:
    error = ValueError("over")
    assert error_text(error) == "over"
    assert loggable(error) is error
    assert loggable(None) is None


def test_the_keys_that_are_missing_are_told_apart() -> None:
    """``str`` quotes the key of a KeyError, and signatures leave out what is quoted."""
    errors = [KeyError(one) for one in ("customer", "price", "no tax rate for country 'NL'")]
    texts = [signature_text(error_text(error)) for error in errors]
    assert texts == ["customer", "price", "no tax rate for country <text>"]
    assert error_text(KeyError(("a", 1))) == "('a', 1)"
