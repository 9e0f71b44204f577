"""Messages sent once: their ids are deleted when their part is sealed, those of others stay."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import Once
from matador.transports.sqlite import send


def ids(file: Path) -> list[tuple[str, int, str]]:
    connection = sqlite3.connect(file)
    try:
        return connection.execute(
            "SELECT name, batch, once_ids.id FROM once_ids JOIN once_scopes ON scope = "
            "once_scopes.id ORDER BY name, batch, once_ids.id"
        ).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 5, 6, 7, 100])
async def test_a_seal_deletes_the_ids_of_its_part_and_those_before(
    connect: Open, make: Make, file: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(send, "_DELETED_AT_ONCE", at_once)
    transport = await connect()
    for scope in ("other", "replay", "third"):
        for batch in range(4):
            await transport.send_once([make(), make()], Once(scope, batch))
    before = ids(file)
    await transport.seal(Once("replay", 2))
    assert ids(file) == [one for one in before if one[0] != "replay" or one[1] == 3]
    await transport.seal(Once("replay", 1))
    await transport.seal(Once("replay", 3))
    assert ids(file) == [one for one in before if one[0] != "replay"]


async def test_of_a_large_call_only_what_is_new_is_stored_in_order(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    messages = [make() for _ in range(300)]
    await transport.send_once(messages[100:200], Once("replay"))
    outcomes = await transport.send_once([*messages, *messages[:50]], Once("replay"))
    assert list(outcomes) == [None] * 350
    stored = [one.id async for one in transport.browse("t.q")]
    assert stored == [one.id for one in (*messages[100:200], *messages[:100], *messages[200:])]
