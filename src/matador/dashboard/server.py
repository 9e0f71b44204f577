"""Serves a dashboard over HTTP until a signal stops it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from matador.dashboard.app import Dashboard
from matador.dashboard.options import DashboardOptions
from matador.errors import ConfigurationError

_GRACE = 2  # seconds for requests that are being answered


def listening(options: DashboardOptions) -> socket.socket:
    """A socket at the dashboard's address, made before anything is started.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except (OSError, OverflowError) as error:
        if made is not None:
            made.close()
        raise ConfigurationError(
            f"cannot listen on {options.host}:{options.port} ({error}); choose another host or port"
        ) from error
    return made


class _Server(uvicorn.Server):
    """Ends live pages on shutdown, because uvicorn waits for them and they do not end by
    themselves."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.end_live_pages()
        await super().shutdown(sockets)


async def serve(
    dashboard: Dashboard, listener: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve requests until SIGINT or SIGTERM, then finish the running ones.

    ``ready`` is called once the start has succeeded.

    Raises:
        MatadorError: the dashboard cannot start.
    """
    config = uvicorn.Config(
        dashboard,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE,
        ws="none",
    )
    server = _Server(config, dashboard)
    try:
        async with dashboard.running():
            ready()
            await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        # uvicorn raises the signal again once it has shut down.
        if not server.should_exit:
            raise
    finally:
        listener.close()
