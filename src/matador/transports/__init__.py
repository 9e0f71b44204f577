"""The brokers: one adapter each, behind one protocol (``matador.transports.base``)."""
