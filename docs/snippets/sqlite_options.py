"""The options of the SQLite transport, as a URL and as an object."""

from matador.transports import SqliteTransport, transport_from_url

# --8<-- [start:options]
by_url = transport_from_url("sqlite:///shop.db?synchronous=NORMAL&lease=60&busy_timeout=5")
by_hand = SqliteTransport("shop.db", synchronous="NORMAL", lease=60, busy_timeout=5)
# --8<-- [end:options]

if __name__ == "__main__":
    print(by_url.capabilities == by_hand.capabilities)
