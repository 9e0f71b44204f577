"""Redis, or Valkey: streams, lists and pub/sub."""

from importlib.util import find_spec

from matador.errors import MissingExtraError

if find_spec("redis") is None or find_spec("hiredis") is None:
    raise MissingExtraError("the Redis transport", "redis")

from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.pubsub import RedisPubSubTransport
from matador.transports.redis.transport import RedisTransport

__all__ = ["RedisListTransport", "RedisPubSubTransport", "RedisTransport"]
