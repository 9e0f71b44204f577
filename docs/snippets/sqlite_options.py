"""The options of the SQLite transport, in a URL and as keywords."""

from matador.transports import SqliteTransport, transport_from_url

# --8<-- [start:options]
by_url = transport_from_url("sqlite:///shop.db?synchronous=NORMAL&lease=60&busy_timeout=5")
by_keyword = SqliteTransport("shop.db", synchronous="NORMAL", lease=60, busy_timeout=5)
# --8<-- [end:options]

if __name__ == "__main__":
    print(by_url.capabilities == by_keyword.capabilities)
