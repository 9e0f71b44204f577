"""What a dead letter keeps of an error."""

from __future__ import annotations

import asyncio

import pytest

from matador.model.message import ERROR_TYPE_HEADER, TRACEBACK_HEADER
from matador.runtime.calls import Calls
from matador.runtime.error_headers import error_headers
from matador.runtime.interruption import Interruption
from matador.runtime.threads import Threads
from matador.runtime.way import HandlersFailed


def fails() -> None:
    try:
        asyncio.run(later())
    except KeyError as error:
        raise ValueError("no points") from error


async def later() -> None:
    raise KeyError("points")


async def test_a_traceback_begins_at_the_users_code_and_has_no_frames_of_matador() -> None:
    calls = Calls(Threads(1), Interruption())
    with pytest.raises(ValueError, match="no points") as raised:
        await calls.in_thread(fails, limit=None, who="fails")
    error = raised.value
    headers = error_headers(error)
    several = error_headers(HandlersFailed({"one": error, "two": KeyError("x")}, ()))
    assert headers[ERROR_TYPE_HEADER] == "ValueError"
    text = headers[TRACEBACK_HEADER]
    assert "matador/runtime" not in text.replace(__file__, "")
    assert text.splitlines()[1].split(", ")[0] == f'  File "{__file__}"', text
    assert "KeyError: 'points'\n\nThe above exception was the direct cause" in text
    assert text.endswith("ValueError: no points\n")
    assert "ValueError: no points\n" in several[TRACEBACK_HEADER]
    assert several[TRACEBACK_HEADER].endswith("KeyError: 'x'\n")


def test_an_error_that_cannot_be_written_leaves_its_name() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    text = error_headers(Odd())[TRACEBACK_HEADER]
    assert "Odd" in text
