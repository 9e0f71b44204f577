"""Plain messages: what RPC, pub/sub and channels share.

A plain message is JSON without an envelope. This package connects (``connection``), sends through
a buffer and a circuit breaker (``outbox``), reads the signatures of handlers (``functions``), and
handles what arrives (``handler``): validate, deduplicate, run, and settle by ``AckStrategy``.
"""
