"""The pages about RPC are true."""

from __future__ import annotations

import re
from pathlib import Path

import matador.errors
from matador import rpc

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_has_every_public_name() -> None:
    page = (DOCS / "reference" / "rpc.md").read_text()
    described = set(re.findall(r"^::: matador\.rpc\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in rpc.__all__ if name in vars(matador.errors)}
    assert described == set(rpc.__all__) - errors - {"Deduplication"}


def test_the_guide_names_every_option_of_a_server() -> None:
    page = (DOCS / "guides" / "rpc.md").read_text()
    annotations = rpc.RpcServer.__init__.__annotations__
    inner = {"url", "queue", "clock", "recovery", "return"}
    assert [name for name in annotations if name not in inner and f"`{name}`" not in page] == []
