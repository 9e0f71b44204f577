"""The transport of the guide "Writing a transport" passes the compliance suite."""

from __future__ import annotations

from docs.snippets.tiny_transport import TinyTransport

# --8<-- [start:test]
from matador.testing import TransportCompliance
from matador.transports import Transport


class TestTinyTransport(TransportCompliance):
    quiet = 0.03  # seconds for which nothing may happen, where nothing may
    _transport: TinyTransport | None = None

    async def make_transport(self) -> Transport:
        # In memory the object is the broker, so a test always gets the same one. A transport
        # with a server behind it returns a new client here.
        if self._transport is None:
            self._transport = TinyTransport()
        return self._transport


# --8<-- [end:test]
