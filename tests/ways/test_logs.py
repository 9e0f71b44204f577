"""What the log says of a message that failed: which, whose, why, and what becomes of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.ways.ways import IN_PROCESS, Call, Way, over

from matador import StandardRetryPolicy
from matador.observe import JsonFormatter
from matador.testing import wait_for


@over(transports=IN_PROCESS)
async def test_a_failure_names_its_message_and_its_handler(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning if it is retried; an error with the stack once that is final."""

    async def handle(n: int, ctx: Any) -> None:
        raise ValueError("no room")

    retry = StandardRetryPolicy(max_attempts=2, base_delay=0.01)
    with caplog.at_level(logging.WARNING, "matador.worker"):
        async with way.receiving(handle, retry=retry):
            await way.send(1)
            await wait_for(lambda: any(one.levelname == "ERROR" for one in caplog.records))
    formatter = JsonFormatter()
    lines = [
        json.loads(formatter.format(one)) for one in caplog.records if "failed in" in one.message
    ]
    *again, final = lines
    assert [one["level"] for one in lines] == ["WARNING"] * len(again) + ["ERROR"]
    assert len(again) == (0 if isinstance(way, Call) else 1)  # its caller is told at once
    for one in lines:
        assert one["message_id"]
        assert one["queue"].startswith(way.queue)
        assert one["transport"]
        handler = one.get("consumer") or one["subscriber"]
        assert one["message"].startswith(handler)
        assert "ValueError: no room" in one["message"]
    assert "traceback" not in "".join(again[0] if again else ())
    assert "ValueError: no room" in final["traceback"]
    frames = [line for line in final["traceback"].splitlines() if line.startswith("  File ")]
    assert all("/tests/ways/" in line for line in frames), "from the user's code on"
