"""A connection of pika with a short way in and out for what travels once a message.

Relies on private parts of pika, all of them here; the tests publish and consume through each, so
that a version that changes them is noticed.
"""

# pika's classes are typed in part only, and its private parts not at all:
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ssl
from typing import Any, Protocol

from pika import exceptions as pika_errors
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.heartbeat import HeartbeatChecker

from matador.transports.rabbitmq import frames

_READ = 256 * 1024


class Sink(Protocol):
    """Takes frames of one channel straight from the socket."""

    def take(self, kind: int, buffer: bytes, at: int, size: int) -> bool:
        """Take a frame whose payload is at ``at``; False: it is for pika."""
        ...


class _Heartbeat(HeartbeatChecker):
    """Notices a dead connection within two heartbeats, where pika adds five seconds to each."""

    def __init__(self, connection: Any, timeout: int) -> None:
        super().__init__(connection, timeout)
        self.stop()
        self._check_interval = timeout
        self._start_send_timer()
        self._start_check_timer()


class FastConnection(AsyncioConnection):
    """Gives frames to the sink of their channel first. What it leaves, and all else, is pika's."""

    sinks: dict[int, Sink]
    _socket: Any = None

    def _init_connection_state(self) -> None:
        super()._init_connection_state()
        self.sinks = {}

    def _create_heartbeat_checker(self) -> HeartbeatChecker | None:
        interval: Any = self.params.heartbeat
        return _Heartbeat(self, int(interval)) if interval else None

    def speed_up(self) -> None:
        """Once open: read in larger pieces than pika's 4096 bytes, and write without a detour."""
        transport: Any = self._transport
        transport._MAX_RECV_BYTES = _READ
        if not isinstance(transport._sock, ssl.SSLSocket):
            self._socket = transport._sock

    def _on_data_available(self, data_in: bytes) -> None:
        sinks = self.sinks
        if not sinks:
            super()._on_data_available(data_in)
            return
        waiting: bytes = self._frame_buffer
        buffer = waiting + data_in if waiting else data_in
        at, end = 0, len(buffer)
        taken = 0
        start = frames.frame_start
        while end - at >= frames.OVERHEAD:
            kind, channel, size = start(buffer, at)
            next_ = at + size + frames.OVERHEAD
            if next_ > end:
                break
            sink = sinks.get(channel)
            if sink is not None and sink.take(kind, buffer, at + 7, size):
                taken += next_ - at
            else:
                self._frame_buffer = b""
                super()._on_data_available(buffer[at:next_])
                if not self.is_open:
                    # Closing: whatever is still there is pika's alone.
                    self.bytes_received += taken
                    super()._on_data_available(buffer[next_:])
                    return
            at = next_
        self._frame_buffer = buffer[at:]
        self.bytes_received += taken  # what the heartbeat looks at

    def write(self, data: bytes) -> None:
        """Send whole frames, made elsewhere. They are with the kernel on return, if it has room."""
        self.bytes_sent += len(data)
        transport: Any = self._transport
        if self._socket is not None and transport.get_write_buffer_size() == 0:
            try:
                sent = self._socket.send(data)
            except OSError:  # no room, or broken: pika finds out
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._adapter_emit_data(data)

    def cut(self) -> None:
        """End it without a farewell."""
        self._terminate_stream(
            pika_errors.StreamLostError("closed because the server did not respond")
        )
