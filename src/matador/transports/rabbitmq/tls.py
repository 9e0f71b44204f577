"""TLS as an address asks for it."""

from __future__ import annotations

import ssl

from matador.transports.rabbitmq.url import Tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """A context to connect with.

    Raises:
        OSError: a file is not there, or is not what it should be.
    """
    context = ssl.create_default_context(cafile=tls.cafile)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certfile is not None:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context
