"""Apache Kafka: topics and consumer groups, through confluent-kafka."""

from importlib.util import find_spec

from matador.errors import MissingExtraError

if find_spec("confluent_kafka") is None:
    raise MissingExtraError("the Kafka transport", "kafka")

from matador.transports.kafka.transport import KafkaTransport

__all__ = ["KafkaTransport"]
