"""What a type checker says: pyright, in strict mode, accepts the programs of the README and of the
guides, and rejects typical mistakes, where they are made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    *("shop.py", "ways.py"),
    *("web_sender.py", "sync_code.py", "emails.py", "maths.py", "analytics.py", "orders.py"),
]
"""The programs of the README and the guides; ``test_pages`` compares them with the pages."""

BEGINNING = """
from shop import OrderPlaced, app, email_receipt
from matador import Schema, subscriber
from matador.jobs import Queue
from matador.pubsub import Publisher
from matador.rpc import RpcClient

queue = Queue("emails")

@queue.job(attempts=5)
async def welcome(to: str, lang: str = "en") -> str:
    return to

def length(text: str) -> int:
    return len(text)

client = RpcClient("memory://", queue="maths")
publisher = Publisher("memory://", exchange="events")

async def use() -> None:
    await app.send(OrderPlaced("1", 5), delay=3)
"""
MISTAKES = {
    "an option that with_ does not have": "app.with_(transprot='memory://')",
    "a retry policy that is a number": "app.with_(retry=3)",
    "an option that send does not have": "await app.send(OrderPlaced('1', 5), dely=3)",
    "a field of the wrong type": "await app.send(OrderPlaced('1', 'five'))",
    "an argument that the job does not take": "await welcome.add(too='ada@example.com')",
    "an argument of the wrong type": "welcome.sync().add(3)",
    "an option that add does not have": "queue.sync().add('welcome', dely=3)",
    "a result of another type": "length(length(welcome.sync().add('ada').result()))",
    "a reply of another type": "length(client.sync().call('ADD', [1], result_type=int))",
    "a publish without data": "publisher.sync().publish('orders.created')",
    "an awaited result of a blocking call": "await queue.sync().add('welcome')",
    "a coroutine that is not awaited": "welcome.add('ada')",
    "an importance that does not exist": "subscriber(description='', importance='high')",
}


@pytest.mark.slow
def test_a_type_checker_accepts_programs_and_rejects_mistakes(tmp_path: Path) -> None:
    for program in (ROOT / "examples").glob("*.py"):
        shutil.copy(program, tmp_path)
    files = [*PROGRAMS, "mistakes.py"]
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": files}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    first = BEGINNING.count("\n")
    lines = [f"    {mistake}  # {what}\n" for what, mistake in MISTAKES.items()]
    (tmp_path / "mistakes.py").write_text(BEGINNING + "".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = [
        (Path(one["file"]).name, one["range"]["start"]["line"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one.get("rule") != "reportUnusedImport"
    ]
    assert [one for one in found if one[0] != "mistakes.py"] == []
    assert [one for one in found if one[1] < first] == []
    rejected = {line - first for _, line, _ in found}
    accepted = [what for number, what in enumerate(MISTAKES) if number not in rejected]
    assert accepted == []
