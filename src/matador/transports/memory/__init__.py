"""The in-process transport: for tests, for a single process and as a fall-back."""

from matador.transports.memory.options import Ability
from matador.transports.memory.shared import shared_memory
from matador.transports.memory.transport import MemoryTransport

__all__ = ["Ability", "MemoryTransport", "shared_memory"]
