"""RabbitMQ over AMQP 0-9-1. The only place that imports pika."""

from matador.errors import MissingExtraError

try:
    import pika as pika
except ImportError as error:
    raise MissingExtraError("RabbitMQ", "rabbitmq") from error

from matador.transports.rabbitmq.transport import RabbitMQTransport

__all__ = ["RabbitMQTransport"]
