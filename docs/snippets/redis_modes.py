"""The three modes of the Redis transport and their capabilities."""

from matador.transports import transport_from_url

# --8<-- [start:modes]
streams = transport_from_url("redis://localhost:6379/0?lease=60")
lists = transport_from_url("redis://localhost:6379/0?mode=list")
broadcast = transport_from_url("redis://localhost:6379/0?mode=pubsub")
# --8<-- [end:modes]

if __name__ == "__main__":
    for transport in (streams, lists, broadcast):
        can = transport.capabilities
        abilities = ("durable", "delays", "priorities", "browse", "depth", "replay")
        has = [name for name in abilities if getattr(can, name)]
        print(type(transport).__name__, *sorted(can.delivery_modes), *has)
