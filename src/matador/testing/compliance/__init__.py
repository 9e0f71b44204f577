"""The compliance suite: tests a transport against the contract in ``matador.transports.base``.

Subclass ``TransportCompliance`` in a test module and give it a factory::

    class TestMyTransport(TransportCompliance):
        async def make_transport(self) -> Transport:
            return MyTransport("my://localhost", lease=1)

The capabilities decide which tests apply: a declared ability must work, and an undeclared one must
be refused with its named error, be absent, or use the documented fallback (priorities and
retention: a note by ``apply_topology``). Needs pytest and pytest-asyncio.
"""

from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.browse import BrowseCompliance
from matador.testing.compliance.connection import ConnectionCompliance
from matador.testing.compliance.dead_letters import DeadLetterCompliance
from matador.testing.compliance.delays import DelayCompliance
from matador.testing.compliance.load import LoadCompliance
from matador.testing.compliance.odd_entries import OddEntryCompliance
from matador.testing.compliance.once import OnceCompliance
from matador.testing.compliance.ordering import OrderingCompliance
from matador.testing.compliance.pausing import PauseCompliance
from matador.testing.compliance.receive import ReceiveCompliance
from matador.testing.compliance.routing import RoutingCompliance
from matador.testing.compliance.send import SendCompliance
from matador.testing.compliance.settle import SettleCompliance
from matador.testing.compliance.unstorable import UnstorableCompliance

__all__ = ["ComplianceBase", "TransportCompliance"]


class TransportCompliance(
    ConnectionCompliance,
    SendCompliance,
    ReceiveCompliance,
    SettleCompliance,
    DeadLetterCompliance,
    UnstorableCompliance,
    OddEntryCompliance,
    DelayCompliance,
    OrderingCompliance,
    BrowseCompliance,
    PauseCompliance,
    OnceCompliance,
    RoutingCompliance,
    LoadCompliance,
):
    """Tests the complete contract of a transport. See the module, and ``ComplianceBase`` for the
    settings."""
