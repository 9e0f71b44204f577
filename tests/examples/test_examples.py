"""Every example runs as a user would run it, in a temporary folder, and prints what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

SAYS: dict[str, list[str]] = {
    "retries.py": [
        "brought back: 1",
        "dead letter: assertion error: the amount must be positive",
        "dead letter: card declined",
        "receipt sent in attempt 3",
        "reserved in attempt 2",
    ],
    "resumable.py": [
        "charging 20",
        "checked out with payment-7 in attempt 2",
        "telling the accounting",
        "telling the warehouse",
        "thanks for payment-7",
    ],
    "hooks.py": [
        "page the engineer on call: over the limit (SendToDeadLetters)",
        "span opened: charge, trace web-17",
        "span opened: charge, trace web-18",
        "{'sent': 2, 'handled': 1, 'failed': 1}",
    ],
    "emails.py": ["sent to ada@example.com in en"],
    "maths.py": ["ADD [1, 2, 3] = 6"],
    "analytics.py": ["analytics saw order 1"],
    "orders.py": ["the channel got order 7"],
    "web_sender.py": ["order 3: 2 messages stored"],
    "sync_code.py": [
        "(202, 'accepted')",
        "filed under request-9",
        "printing the receipt of order 1",
    ],
    "fallback.py": [
        "handled: 1, 2",
        "order 1 is stored",
        "order 2 is stored",
        "volume failed, spare takes the message",
    ],
    "delays_and_priorities.py": [
        "mails: password reset, newsletter, reminder",
        "pen: [0, 1, 2, 3, 4] ink: [0, 1, 2, 3, 4]",
    ],
}
"""The output of each example, sorted, because subscribers run concurrently."""


def run(folder: Path, *arguments: str | Path, within: float = 110) -> str:
    """Run Python in a folder, with warnings as errors, and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", SAYS)
def test_an_example_does_what_it_says(example: str, tmp_path: Path) -> None:
    lines = run(tmp_path, EXAMPLES / example).splitlines()
    assert sorted(lines) == sorted(SAYS[example])


def test_codecs_get_smaller_from_line_to_line(tmp_path: Path) -> None:
    lines = run(tmp_path, EXAMPLES / "codecs.py").splitlines()
    sizes = [int(line.split()[-2].replace(",", "")) for line in lines]
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("example", "tested", "passed"),
    [
        ("testing_example.py", ["shop.py"], 5),
        ("testing_ways.py", ["emails.py", "maths.py", "analytics.py", "orders.py"], 8),
    ],
)
def test_a_testing_example_passes(
    example: str, tested: list[str], passed: int, tmp_path: Path
) -> None:
    for name in (example, *tested, "pytest.ini"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    printed = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", example)
    assert f"{passed} passed" in printed


def test_the_demo_loses_nothing(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / "demo.py")
    sums = [line.split() for line in printed.splitlines() if line.split()[:2] == ["360", "="]]
    assert len(sums) == 3, printed
    for sent, _, handled, _, dead, _, waiting in sums:
        assert int(sent) == int(handled) + int(dead) + int(waiting)
    assert sums[1][4] == "3"
    assert sums[2] == ["360", "=", "360", "+", "0", "+", "0"]
    assert printed.count("cards charged: 120, charged twice: 0") == 2
    assert "All orders are handled, and none is lost." in printed


def test_the_demo_shows_the_other_ways_in(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / "demo_ways.py")
    for line in (
        "sent to ada@example.com in en",
        "ADD [1, 2, 3] = 6",
        "analytics saw order 1",
        "the channel got order 7",
    ):
        assert line in printed


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_the_pipeline_of_the_demo_adds_up(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / "demo_pipeline.py", within=580)
    lines = [line.split() for line in printed.splitlines()]
    assert ["FR", "500", "126245"] in lines
    assert "38 dead letters redriven" in printed
    assert ["order.placed", "book", "1500", "=", "1500", "+", "0", "+", "0"] in lines
    assert ["in", "all", "6000", "=", "5994", "+", "6", "+", "0"] in lines
    assert "It adds up" in printed
    assert (tmp_path / ".demo" / "pipeline" / "report.html").stat().st_size > 10_000


def test_no_example_is_forgotten() -> None:
    run_elsewhere = {
        *("broker_shop.py", "other_service.py", "ways.py"),  # in the sessions of the pages
        *("codecs.py", "demo.py", "demo_pipeline.py", "demo_pipeline_shop.py", "demo_shop.py"),
        *("demo_ways.py", "fastapi_shop.py", "flask_shop.py"),
        *("journaled_shop.py", "revenue.py", "shop.py", "testing_example.py"),
        "testing_ways.py",
    }
    assert {path.name for path in EXAMPLES.glob("*.py")} <= SAYS.keys() | run_elsewhere
