"""All scenarios. Each plays one fault of the table and says what it saw."""

from __future__ import annotations

from chaos.catalogue import Catalogue
from chaos.scenarios import (
    clock,
    crashes,
    dead_letters,
    fan_out,
    leases,
    network,
    order,
    payloads,
    server,
    shutdown,
    storage,
)

CATALOGUE = Catalogue()

for module in (
    crashes,
    shutdown,
    server,
    network,
    storage,
    leases,
    clock,
    payloads,
    fan_out,
    dead_letters,
    order,
):
    module.add_to(CATALOGUE)
