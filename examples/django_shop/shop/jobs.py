"""The background jobs of the shop."""

# --8<-- [start:jobs]
from matador.django import with_database
from matador.jobs import Queue

queue = Queue("exports", provider="sqlite:///events.db")


@queue.job(attempts=5)
@with_database
def export_orders(since: int) -> int:  # sync: runs in a thread
    from shop.models import Order

    count = Order.objects.filter(pk__gte=since).count()
    print(f"{count} orders exported", flush=True)
    return count


# --8<-- [end:jobs]
