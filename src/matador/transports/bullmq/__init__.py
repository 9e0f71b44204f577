"""BullMQ: jobs on Redis that workers and dashboards in other languages can see and process."""

from importlib.util import find_spec

from matador.errors import MissingExtraError

if find_spec("bullmq") is None:
    raise MissingExtraError("the BullMQ transport", "bullmq")

from matador.transports.bullmq.transport import BullMQTransport

__all__ = ["BullMQTransport"]
