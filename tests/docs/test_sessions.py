"""How the output of a command is compared with the page that shows it."""

from __future__ import annotations

import pytest
from tests.docs.sessions import missing

SHOWN = ("df0a1b50  order.placed  delayed  21:01:36  events",)


@pytest.mark.parametrize(
    "when", ["23:59:59", "2026-11-18 00:23", "2026-11-18 00:23:05", "2026-11-18T00:23:05Z"]
)
def test_a_page_is_true_on_every_day_and_at_every_hour(when: str) -> None:
    assert missing(SHOWN, f"e7af2ac1  order.placed  delayed  {when}  events") == []


@pytest.mark.parametrize("when", ["tomorrow", "2026-11-18", "00:23"])
def test_what_is_no_time_does_not_stand_for_one(when: str) -> None:
    assert missing(SHOWN, f"e7af2ac1  order.placed  delayed  {when}  events") == list(SHOWN)
