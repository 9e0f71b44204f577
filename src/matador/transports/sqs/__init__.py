"""Amazon SQS: standard and FIFO queues, through aiobotocore."""

from importlib.util import find_spec

from matador.errors import MissingExtraError

if find_spec("aiobotocore") is None:
    raise MissingExtraError("the SQS transport", "sqs")

from matador.transports.sqs.transport import SqsTransport

__all__ = ["SqsTransport"]
