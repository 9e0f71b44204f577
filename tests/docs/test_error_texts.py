"""The errors quoted in the troubleshooting tables are errors that users can really see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOREIGN = (  # what brokers, clients and TLS say themselves
    "ACCESS_REFUSED",
    "CERTIFICATE_VERIFY_FAILED",
    "Connection refused",
    "MISCONF",
    "OOM",
    'Protocol error, got "A" as reply type byte',
    "WRONG_VERSION_NUMBER",
    "has no permissions",
    "invalid username-password pair",
    "not found",
    "vhost",
)


def quoted(page: str) -> list[str]:
    """The texts in the first column of the page's last table, without what varies."""
    table = (ROOT / "docs" / "guides" / page).read_text().partition("## Troubleshooting")[2]
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    pieces = (
        piece for row in rows for code in re.findall("`(.+?)`", row) for piece in _split(code)
    )
    return sorted({piece for piece in pieces if piece not in FOREIGN})


def _split(code: str) -> list[str]:
    return [piece.strip(" :") for piece in code.split("…") if piece.strip(" :")]


def source() -> str:
    """The code, with texts that go over several lines joined."""
    texts = [path.read_text() for path in (ROOT / "src" / "matador").rglob("*.py")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


@pytest.mark.parametrize("page", ["rabbitmq.md", "redis.md"])
def test_quoted_errors_exist(page: str) -> None:
    code = source()
    assert quoted(page)
    assert [text for text in quoted(page) if text not in code] == []
