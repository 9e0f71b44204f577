"""Data and results of jobs as JSON, in the type that a handler names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matador.codec.data import data_decoder, encode_data
from matador.errors import InvalidJobError


def encode_json(value: Any, where: str) -> bytes:
    """A value as JSON.

    Raises:
        InvalidJobError: it cannot be written, or would be read back as something else.
    """
    return encode_data(value, where, InvalidJobError)


def decoder_for(kind: Any, where: str) -> Callable[[bytes], Any]:
    """A function that reads JSON into a type.

    Raises:
        InvalidJobError: the type is none that can be read.
    """
    return data_decoder(kind, where, InvalidJobError)
