"""Remote calls: commands that a server handles, called by clients that wait for the result.

Example:
    >>> server = RpcServer("amqp://localhost", queue="maths")
    >>> @server.handler("ADD")
    ... async def add(request: Add) -> int:
    ...     return request.a + request.b
    >>> async with server, RpcClient("amqp://localhost", queue="maths") as client:
    ...     total = await client.call("ADD", Add(1, 2), result_type=int)
"""

from matador.errors import ConnectionLostError, RemoteError, RpcError, RpcTimeoutError
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.backoff import Exponential, Fixed
from matador.policy.circuit import CircuitBreaker
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.rpc.client import CallRetry, RpcClient, SyncRpcClient
from matador.rpc.server import RpcServer
from matador.rpc.way import RpcContext

__all__ = [
    "AckStrategy",
    "CallRetry",
    "CircuitBreaker",
    "ConnectionLostError",
    "DeadLetterOptions",
    "Deduplication",
    "Exponential",
    "Fixed",
    "Recovery",
    "RemoteError",
    "RpcClient",
    "RpcContext",
    "RpcError",
    "RpcServer",
    "RpcTimeoutError",
    "SyncRpcClient",
    "Validation",
]
