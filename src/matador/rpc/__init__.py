"""Remote calls: commands that a server handles, called by clients who wait for the result.

Example:
    >>> server = RpcServer("amqp://localhost", queue="maths")
    >>> @server.handler("ADD")
    ... async def add(request: Add) -> int:
    ...     return request.a + request.b
    >>> async with server, RpcClient("amqp://localhost", queue="maths") as client:
    ...     total = await client.call("ADD", Add(1, 2), result_type=int)
"""

from matador.errors import ConnectionLostError, RemoteError, RpcError, RpcTimeoutError
from matador.messages.counters import MessageCounters
from matador.messages.health import MessagingHealth
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.circuit import CircuitBreaker
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.rpc.client import RpcClient
from matador.rpc.context import RpcContext
from matador.rpc.metrics import RpcClientMetrics
from matador.rpc.retry import CallRetry
from matador.rpc.server import RpcServer

__all__ = [
    "AckStrategy",
    "CallRetry",
    "CircuitBreaker",
    "ConnectionLostError",
    "DeadLetterOptions",
    "Deduplication",
    "MessageCounters",
    "MessagingHealth",
    "Recovery",
    "RemoteError",
    "RpcClient",
    "RpcClientMetrics",
    "RpcContext",
    "RpcError",
    "RpcServer",
    "RpcTimeoutError",
    "Validation",
]
