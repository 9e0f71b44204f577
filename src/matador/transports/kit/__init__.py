"""Building blocks of transports, so that each transport contains only what is specific to its
broker.

``transport`` (state, observers, connect and disconnect), ``options`` (addresses and options),
``backoff``, ``wakeup``, ``window`` (acknowledgements in order), ``properties`` (carried in a
header), ``routing`` (exchanges and bindings) and ``errors``. Beside it: ``supervisor`` for one
network connection, ``coalescer`` for batches, ``clock`` and ``credentials``.
"""
