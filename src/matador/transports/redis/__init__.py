"""Redis, or Valkey: streams, lists and pub/sub."""

from importlib.util import find_spec

from matador.errors import MissingExtraError

if find_spec("redis") is None:
    raise MissingExtraError("the Redis transport", "redis")

from matador.transports.redis.transport import RedisTransport

__all__ = ["RedisTransport"]
