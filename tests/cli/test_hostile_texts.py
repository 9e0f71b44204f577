"""What a stranger sends acts on nobody's terminal, and no output has a password in it."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree
from tests.cli.conftest import Cli, Shop, Start, dedent, envelope

from matador.cli import output
from matador.cli.terminal import SafeConsole

# A title for the window, a colour, the cursor moved up, a C1 escape, letters turned around, a tag.
HOSTILE = "\x1b]0;owned\x07\x1b[31m\x1b[2A\x9b2J\u202egnp.exe\u2066\U000e0041\x00\x7f\r\x85\u2028"
DANGEROUS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
DEAD = "shop.billing.undeliverable"

hostile = st.text(
    st.sampled_from(HOSTILE + "\n\t\udcff") | st.characters(max_codepoint=0x2100), max_size=40
)


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """What was printed on stdout and stderr since it was asked last."""
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda: "".join(capsys.readouterr())


def test_nothing_a_command_prints_controls_the_terminal(printed: Callable[[], str]) -> None:
    @given(hostile)
    def check(text: str) -> None:
        table = output.table("a", "b", title=text)
        table.add_row(text, Text(text, "bold"))
        tree = Tree(text)
        tree.add(Text.assemble("x", (text, "red")))
        for shown in (text, Text(text), table, tree, Group(text, Padding(Text(text), (0, 2)))):
            output.say(shown)
        for tell in (output.note, output.warn, output.complain):
            tell(text)
        seen = printed()
        assert seen.count("error:") == 1
        assert DANGEROUS.search(seen) is None, ascii(seen)

    check()


def test_a_line_of_a_stranger_never_looks_like_one_of_ours(printed: Callable[[], str]) -> None:
    @given(hostile)
    def check(text: str) -> None:
        handler = output.ConsoleHandler(output.err())
        arguments = (f"{text}\n2026-01-01 00:00:00,000 INFO matador: all is well",)
        record = logging.LogRecord("m", logging.ERROR, "f", 1, "%s failed", arguments, None)
        handler.emit(record)
        output.complain(f"{text}\nerror: forged")
        seen = printed()
        assert DANGEROUS.search(seen) is None, ascii(seen)
        begin = [line for line in seen.split("\n") if line and not line.startswith(" ")]
        assert len(begin) == 2, seen
        assert begin[1].startswith("error:")

    check()


def test_styles_stay_on_the_words_they_were_put_on() -> None:
    console = SafeConsole(
        file=io.StringIO(), force_terminal=True, color_system="standard", markup=False
    )
    console.print(Text.assemble("a\x1b\x1b", ("red", "red"), " b"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "a␛␛\x1b[31mred\x1b[0m b\n"


def test_json_stays_json_and_plain_ascii(printed: Callable[[], str]) -> None:
    @given(st.dictionaries(hostile, hostile | st.floats(), max_size=3))
    def check(value: dict[str, object]) -> None:
        output.say_json_line(value)
        seen = printed()
        assert re.fullmatch(r"[ -~]*\n", seen), ascii(seen)
        found = json.loads(seen, parse_constant=pytest.fail)
        for key, one in value.items():
            assert found[key] in (one, str(one))

    check()


def test_json_has_keys_and_numbers_for_what_it_has_no_word_for(printed: Callable[[], str]) -> None:
    output.say_json_line({"a": [float("nan"), {b"k": 1, (1, 2): float("inf")}], 3: b"\xff"})
    assert json.loads(printed(), parse_constant=pytest.fail) == {
        "a": ["nan", {"b'k'": 1, "(1, 2)": "inf"}],
        "3": "b'\\xff'",
    }


@pytest.fixture
def evil(shop: Shop) -> str:
    """A dead letter whose every text is hostile; its id."""
    name = f"x{HOSTILE}\ny"
    id_ = f"evil{HOSTILE}"
    body = envelope(
        id_,
        500,
        event_key=name,
        subscriber=name,
        first_error=name,
        last_error=f"{name} 2",
        correlation_id=name,
        metadata={name: name},
    )
    shop.put(DEAD, [(id_, body), ("good", envelope("good", 7))])
    return id_


def test_dead_letters_are_listed_in_a_line_each(cli: Cli, evil: str) -> None:
    result = cli("dead-letters", "list", "shop.py")
    assert result.code == 0, result.err
    assert DANGEROUS.search(result.out) is None, ascii(result.out)
    lines = result.out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("evil␛]0;")
    assert lines[2].startswith("good")


def test_dead_letters_are_shown_and_do_nothing(cli: Cli, evil: str) -> None:
    result = cli("dead-letters", "show", "shop.py", "--id", "evil")
    assert result.code == 0, result.err
    assert DANGEROUS.search(result.out) is None, ascii(result.out)
    assert "␛]0;owned" in result.out
    found = cli("dead-letters", "show", "shop.py", "--id", "evil", "--json")
    assert re.fullmatch(r"[ -~\n]*", found.out)
    (letter,) = found.json["dead_letters"]
    assert letter["id"] == evil
    assert letter["last_error"] == f"x{HOSTILE}\ny 2"


def test_undecodable_letters_do_nothing_either(cli: Cli, shop: Shop) -> None:
    shop.put(DEAD, [("raw", HOSTILE.encode("utf-8", "surrogatepass"))])
    for command in ("list", "show"):
        ids = () if command == "list" else ("--id", "raw")
        result = cli("dead-letters", command, "shop.py", *ids)
        assert result.code == 0, result.err
        assert DANGEROUS.search(result.out) is None, ascii(result.out)


def test_the_log_of_a_worker_has_no_control_characters_and_no_passwords(
    start: Start, shop: Shop, folder: Path
) -> None:
    (folder / "loud.py").write_text(
        dedent(
            """
            import logging
            from shop import app
            from matador.runtime.hooks import Hooks

            class Loud(Hooks):
                def on_worker_before_process(self, event):
                    logging.getLogger("shop").warning("got %s", event.envelope.data.order_id)
                    raise ValueError("redis://:hun/ter2@host/0")

            app.configure(hooks=[Loud()])
            """
        )
    )
    worker = start("worker", "loud.py")
    worker.says("consuming shop.billing")
    order = f"{HOSTILE}\n2026-01-01 00:00:00,000 INFO matador: forged"
    shop.put("shop.billing", [("1", envelope(order, 5))])
    worker.says("ValueError: redis://:***@host/0")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert "got ␛]0;owned" in worker.err
    assert DANGEROUS.search(worker.err) is None, ascii(worker.err)
    (forged,) = [line for line in worker.err.splitlines() if "forged" in line]
    assert forged.startswith(" ")
    assert "hun/ter2" not in worker.err + worker.out


SECRETIVE = """
    from matador import Matador, Schema
    raise RuntimeError("cannot reach amqp://me:hun/ter?2@host:5672/shop, password=hun/ter?2")
"""


@pytest.mark.parametrize("more", [[], ["--json"], ["--verbose"], ["--json", "--verbose"]])
@pytest.mark.parametrize(
    "command", [["doctor"], ["queues"], ["topology", "show"], ["dead-letters", "list"], ["worker"]]
)
def test_no_command_prints_a_password(
    cli: Cli, folder: Path, command: list[str], more: list[str]
) -> None:
    (folder / "bad.py").write_text(dedent(SECRETIVE))
    result = cli(*command, "bad.py", *more)
    assert result.code == 1
    assert "cannot reach amqp://me:***@host:5672/shop" in result.out + result.err
    assert "hun/ter" not in result.out + result.err


@pytest.mark.parametrize("password", ["hun/ter2", "hun?ter2", "hun#ter2/", "hun[ter2", "5672/ter2"])
@pytest.mark.parametrize("scheme", ["amqp", "redis", "bullmq", "sqlite", "ampq"])
def test_doctor_names_a_wrong_address_without_its_password(
    cli: Cli, folder: Path, scheme: str, password: str
) -> None:
    url = f"{scheme}://me:{password}@127.0.0.1:1/0"
    (folder / "bad.py").write_text(
        f"from matador import Matador, Schema\napp = Matador({url!r}, schema=Schema())\n"
    )
    for more in ([], ["--json"], ["--verbose"]):
        result = cli("doctor", "bad.py", *more)
        assert result.code == 1, result.out
        assert "ter2" not in result.out + result.err
