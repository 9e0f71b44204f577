"""No page, help text, docstring or class uses a name of an earlier vocabulary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.five_ways import options

from matador import Matador
from matador.channels import QueueService
from matador.jobs import Queue, Worker
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer

ROOT = Path(__file__).parents[2]
CLASSES = (Matador, Queue, Worker, RpcServer, RpcClient, Publisher, Subscriber, QueueService)

GONE = {
    r"\b(DecodeFailure|Enqueue(Error|Success|Warning)|Worker(Error|Success))\b": "Sent, Attempt",
    r"\b(Sent|Attempted)Message\b": "Sent, Attempt",
    r"\bRecorders?\b": "hooks",
    r"\bMessagingHealth\b|\bServiceHealth\b": "Health",
    r"\bMessageCounters\b|\b(Service|RpcClient)Metrics\b": "Metrics",
    r"\bhandler_timeout\b": "timeout=",
    r"\bforce_shutdown\b|\bforce=True\b": "shutdown(timeout=0)",
    r"\bresume_receiving\b": "resume",
    r"\bon_send_wrap\b": "on_send_enter, on_send_exit",
    r"\bevents\.dead_letters\b": "runtime.dead_letters",
    r"\b(app|server|client|publisher|sub|subscriber|service|shop)\.(stop|close)\(": "shutdown()",
    r"\b(app|server|client|publisher|sub|subscriber|service|worker)\.counters\b": "metrics()",
    r"\b(RpcServer|RpcClient|Publisher|Subscriber|QueueService|Queue|Worker)\([^)\n]*journal=": (
        "hooks=[Journal(…)]"
    ),
}
"""Patterns of names that are gone, and what is written today."""

ALLOWED = {"docs/decisions"}
"""Records of decisions say what was then."""

BRITISH = re.compile(
    r"\b(\w*(recogni|organi|summari|normali|seriali|initiali|synchroni|optimi)s(e[ds]?|ing|ation)"
    r"|analys(e[ds]?|ing)|(behavi|col|fav|hon|neighb)our(s|ed|ing|able)?|licence|misspelt)\b",
    re.IGNORECASE,
)

METHODS = {"stop", "force_shutdown", "stop_receiving", "resume_receiving", "counters"}
OPTIONS = {"journal", "handler_timeout", "recorder"}


def texts() -> Iterator[tuple[str, str]]:
    """Every line that users read: pages, snippets, examples; help texts and docstrings of src."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for folder in ("docs/snippets", "examples", "deploy"):
        files += [one for one in (ROOT / folder).rglob("*") if one.suffix in (".py", ".toml")]
    for file in files:
        place = str(file.relative_to(ROOT))
        if str(Path(place).parent) not in ALLOWED:
            yield from ((place, line) for line in file.read_text().splitlines())
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                place = f"{file.relative_to(ROOT)}:{node.lineno}"
                yield from ((place, line) for line in node.value.splitlines())


TEXTS = list(texts())


@pytest.mark.parametrize("pattern", GONE)
def test_no_text_uses_an_old_name(pattern: str) -> None:
    old = re.compile(pattern)
    found = [f"{place}: {line.strip()}" for place, line in TEXTS if old.search(line)]
    assert not found, f"write {GONE[pattern]}:\n" + "\n".join(found)


def test_the_spelling_is_american() -> None:
    found = [f"{place}: {line.strip()}" for place, line in TEXTS if BRITISH.search(line)]
    assert not found, "\n".join(found)
    assert all(map(BRITISH.search, ("It summarises.", "misspelt", "Neighbours", "initialised")))
    assert not any(
        map(BRITISH.search, ("a promise", "otherwise", "an hour", "color", "optimistic"))
    )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_no_class_has_an_old_name(cls: type) -> None:
    assert not METHODS & set(dir(cls))
    assert not OPTIONS & options(cls)
    if cls not in (Queue, Worker):  # the document for jobs names it, with options of its own
        assert not hasattr(cls, "close")


def test_the_patterns_find_what_they_should() -> None:
    for line in (
        "await server.stop(force=True)",
        'Subscriber(url, exchange="shop", journal=Journal("journal/"))',
        "publisher.counters.sent",
        "handler_timeout=5",
    ):
        assert any(re.search(pattern, line) for pattern in GONE), line
