"""The proxy does to connections what it is told, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from chaos.proxy import Proxy


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Somebody who says everything back, and is rid of clients who say goodbye."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_echo_all, args=[listener], daemon=True).start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server: socket.socket) -> Iterator[Proxy]:
    with Proxy(server.getsockname()[1]) as proxy:
        yield proxy


def _echo_all(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=[client], daemon=True).start()


def _echo(client: socket.socket) -> None:
    with client:
        try:
            while data := client.recv(1 << 16):
                client.sendall(data)
        except OSError:
            return


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def say(client: socket.socket, text: bytes) -> bytes:
    """What comes back."""
    client.sendall(text)
    found = b""
    while len(found) < len(text):
        more = client.recv(1 << 16)
        if not more:
            break
        found += more
    return found


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def silent(client: socket.socket, seconds: float = 0.2) -> bool:
    """Does nothing come, not even a goodbye?"""
    client.settimeout(seconds)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_it_forwards_and_counts(proxy: Proxy) -> None:
    with connect(proxy) as one, connect(proxy) as two:
        assert say(one, b"hello") == b"hello"
        assert say(two, b"x" * 1_000_000) == b"x" * 1_000_000
        eventually(lambda: proxy.traffic.down == 1_000_005)
        traffic = proxy.traffic
        assert (traffic.connections, traffic.open, traffic.up) == (2, 2, 1_000_005)
        assert len(proxy.accepted) == 2
    eventually(lambda: proxy.traffic.open == 0)


def test_it_passes_goodbyes_on(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"last words"
        assert client.recv(100) == b""


def test_what_is_swallowed_is_gone_and_nobody_is_told(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.swallow()
        client.sendall(b"into the void")
        assert silent(client)
        with connect(proxy) as another:
            another.sendall(b"hello?")
            assert silent(another)
        proxy.heal()
        client.sendall(b"anybody?")
        assert silent(client), "a stream with a hole went on"
        with connect(proxy) as anew:
            assert say(anew, b"after") == b"after"


def test_new_connections_may_live_while_the_old_are_dead(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.swallow(new=False)
        with connect(proxy) as anew:
            assert say(anew, b"after") == b"after"
        client.sendall(b"anybody?")
        assert silent(client)


def test_a_goodbye_is_swallowed_too(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.swallow()
    eventually(lambda: proxy.traffic.connections == 1)
    assert proxy.traffic.open == 1


@pytest.mark.parametrize("direction", ["up", "down"])
def test_each_direction_can_be_delayed(proxy: Proxy, direction: str) -> None:
    with connect(proxy) as client:
        proxy.delay(0.2, "up" if direction == "up" else "down")
        started = time.monotonic()
        assert say(client, b"slow") == b"slow"
        assert time.monotonic() - started >= 0.2
        proxy.delay(3600, "up" if direction == "up" else "down")
        proxy.heal()
        assert say(client, b"quick") == b"quick"


def test_bandwidth_can_be_limited(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.limit(400_000, "up")
        started = time.monotonic()
        assert len(say(client, b"x" * 200_000)) == 200_000
        assert time.monotonic() - started >= 0.25


def test_what_is_held_arrives_later(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.hold()
        client.sendall(b"late")
        assert silent(client)
        proxy.heal()
        assert client.recv(100) == b"late"


def test_a_reset_is_seen_as_one(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    eventually(lambda: proxy.traffic.open == 0)


def test_a_half_closed_connection_has_one_direction(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.half_close("down")
        assert client.recv(1) == b""
        before = proxy.traffic.up
        client.sendall(b"still heard")
        eventually(lambda: proxy.traffic.up == before + len(b"still heard"))


def test_new_connections_can_be_refused(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert say(client, b"before") == b"before"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert say(client, b"still here") == b"still here"
        proxy.heal()
        with connect(proxy) as anew:
            assert say(anew, b"after") == b"after"


def test_a_server_that_is_gone_is_a_connection_that_is_cut(server: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with Proxy(port) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)
