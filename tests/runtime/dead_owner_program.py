"""A server as its own process, for ``test_store_outages.py``: BROKER STORE QUEUE FILE.

The first run of its handler kills the process. Later ones write their message to the file.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from matador.policy.dedup import Deduplication
from matador.rpc import RpcServer
from matador.runtime.redis_dedup import RedisDuplicateStore

broker, store, queue, file = sys.argv[1:]
remembering = Deduplication(store=RedisDuplicateStore(store))
server = RpcServer(broker, queue=queue, deduplication=remembering, dead_letters=True)


@server.handler("NOTE")
def note(text: str) -> None:
    begun = Path(f"{file}.begun")
    if not begun.exists():
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(file).open("a") as lines:
        lines.write(f"{text}\n")


server.run()
