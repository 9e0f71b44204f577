"""What the transports on a Redis server share: redis-py, its errors, addresses, the server."""
