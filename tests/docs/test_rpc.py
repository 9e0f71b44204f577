"""The pages about RPC are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import matador.errors
from matador import rpc
from matador.runtime.message_service import ReceiverOptions

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_has_every_public_name() -> None:
    page = (DOCS / "reference" / "rpc.md").read_text()
    described = set(re.findall(r"^::: matador\.rpc\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in rpc.__all__ if name in vars(matador.errors)}
    elsewhere = {"Deduplication", "Exponential", "Fixed"}
    assert described == set(rpc.__all__) - errors - elsewhere
    assert all(f"`{name}`" in page for name in elsewhere)


def test_the_guide_names_every_option_of_a_server() -> None:
    page = (DOCS / "guides" / "rpc.md").read_text()
    own = rpc.RpcServer.__init__.__annotations__
    shared = get_type_hints(ReceiverOptions)
    inner = {"url", "queue", "clock", "recovery", "return", "options"}
    named = {name for name in (*own, *shared) if f"`{name}`" in page}
    assert {*own, *shared} - named - inner == set()
