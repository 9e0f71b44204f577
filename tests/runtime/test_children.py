"""Child processes: what they answer, how they end, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import pytest

from matador.runtime.children import Child, ChildDiedError, Parent
from matador.testing import wait_for

MEGABYTE = b"x" * (1 << 20)


def serve(parent: Parent, greeting: bytes) -> None:
    """Runs in the process: does what each message says."""
    while True:
        message = parent.receive()
        match message:
            case b"pid":
                parent.send(str(os.getpid()).encode())
            case b"group":
                parent.send(str(os.getpgrp()).encode())
            case b"exit":
                os._exit(7)
            case b"kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case b"interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                parent.send(b"still here")
            case b"deaf":
                parent.send(b"")
                time.sleep(600)
            case b"return":
                return
            case _:
                parent.send(greeting + message)


def child(*, leads: bool = False) -> Child:
    return Child("child of a test", serve, b"you said ", leads=leads)


async def asked(one: Child, message: bytes) -> bytes:
    await one.send(message)
    return await one.receive()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_messages_of_any_size_go_there_and_back_in_order() -> None:
    one = child()
    assert one.alive
    for message in (b"hello", b"", MEGABYTE):
        await one.send(message)
    for message in (b"hello", b"", MEGABYTE):
        assert await one.receive() == b"you said " + message
    assert await asked(one, b"interrupt") == b"still here", "Ctrl-C is for the parent"
    assert int(await asked(one, b"group")) == os.getpgrp()
    pid = int(await asked(one, b"pid"))
    assert pid != os.getpid()
    one.close()
    await asyncio.to_thread(one.join)
    assert not one.alive
    assert not is_there(pid)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"exit", "ended with exit code 7"),
        (b"kill", "was killed by SIGKILL"),
        (b"return", "ended with exit code 0"),
    ],
)
async def test_a_process_that_has_ended_says_how(message: bytes, said: str) -> None:
    one = child()
    await one.send(message)
    with pytest.raises(ChildDiedError) as caught:
        await one.receive()
    assert str(caught.value) == said
    assert not one.alive

    with pytest.raises(ChildDiedError, match=said):
        await one.receive()
    one.close()


@pytest.mark.parametrize("leads", [False, True])
async def test_one_that_does_not_listen_is_killed(leads: bool) -> None:
    one = child(leads=leads)
    group, pid = int(await asked(one, b"group")), int(await asked(one, b"pid"))
    assert (group == pid) == leads
    await asked(one, b"deaf")
    one.kill()
    await wait_for(lambda: not one.alive)
    await wait_for(lambda: not is_there(pid))


async def test_one_that_was_never_used_ends_when_it_is_told_to() -> None:
    one = child()
    one.close()
    await asyncio.to_thread(one.join)
    assert not one.alive


async def test_one_that_leads_ends_its_processes_with_it() -> None:
    one = child(leads=True)
    pid = int(await asked(one, b"pid"))
    one.close()
    await wait_for(lambda: not one.alive)
    await asyncio.to_thread(one.join)
    assert not is_there(pid)


def test_the_parent_is_gone_when_its_connection_ends_even_within_a_message() -> None:
    ours, theirs = socket.socketpair()
    parent = Parent(theirs)
    ours.sendall(b"\0\0\0\5hello" + b"\0\0\0\0" + b"\0\0")
    assert (parent.receive(), parent.receive()) == (b"hello", b"")
    parent.send(b"abc")
    assert ours.recv(100) == b"\0\0\0\3abc"
    ours.close()
    with pytest.raises(EOFError):
        parent.receive()
    theirs.close()
