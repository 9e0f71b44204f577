"""Shared code of the transports on a Redis server: redis-py, its errors, addresses, the server."""
