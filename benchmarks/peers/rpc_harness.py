"""What every contestant in RPC does in the same way: serve in a process, call from another.

A script defines a contestant and calls ``run`` with it. It is started as

    SCRIPT one|many URL NUMBER      prints calls per second, and microseconds of CPU of the client
                                    and of the server per call

``one`` makes a call when the one before has returned; its rate is the inverse of the median time.
``many`` has 64 callers. Every result is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from typing import Any, Protocol

CALLERS = 64
WARM_UP = 50


class RpcPeer(Protocol):
    """A contestant. The command is to return the ``amount`` of the payload, plus one."""

    async def serve(self) -> None:
        """Start to serve; return when ready."""
        ...

    async def connect(self) -> None:
        """Get ready to call."""
        ...

    async def call(self, payload: dict[str, Any]) -> Any:
        """Call, and return the result."""
        ...

    async def close(self) -> None:
        """Stop whatever was started."""
        ...


def payload(number: int) -> dict[str, Any]:
    """About 200 bytes of JSON."""
    return {"order_id": f"order-{number:08d}", "amount": number, "note": "x" * 140}


def run(peer: RpcPeer, command: list[str] | None = None) -> None:
    """Do what the command line asks for; ``command`` is how this script is started."""
    action, url, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if action == "serve":
        asyncio.run(_serve(peer))
        return
    again = [*(command or [sys.argv[0]]), "serve", url, str(number)]
    server = subprocess.Popen(
        [sys.executable, *again], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        if server.stdout.readline().strip() != "ready":
            raise SystemExit("the server did not start")
        rate, client_cpu = asyncio.run(_measure(peer, action, number))
        out, _ = server.communicate("stop\n", timeout=30)
    finally:
        server.kill()
    print(f"{rate:.3f} {client_cpu:.1f} {float(out) / (number + WARM_UP) * 1e6:.1f}", flush=True)


async def _serve(peer: RpcPeer) -> None:
    await peer.serve()
    start = time.process_time()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(time.process_time() - start, flush=True)
    with contextlib.suppress(Exception):
        await peer.close()


async def _measure(peer: RpcPeer, action: str, number: int) -> tuple[float, float]:
    await peer.connect()
    for place in range(WARM_UP):
        await _checked(peer, place)
    cpu, start = time.process_time(), time.perf_counter()
    if action == "one":
        times: list[float] = []
        for place in range(number):
            began = time.perf_counter()
            await _checked(peer, place)
            times.append(time.perf_counter() - began)
        rate = 1 / statistics.median(times)
    else:
        places = iter(range(number))

        async def caller() -> None:
            for place in places:
                await _checked(peer, place)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        rate = number / (time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / number * 1e6
    await peer.close()
    return rate, cpu


async def _checked(peer: RpcPeer, place: int) -> None:
    if await peer.call(payload(place)) != place + 1:
        raise SystemExit("a wrong result")
