"""All scenarios. Each plays one fault of the table and says what it saw."""

from __future__ import annotations

from chaos.catalogue import Catalogue
from chaos.scenarios import crashes, shutdown

CATALOGUE = Catalogue()

for module in (crashes, shutdown):
    module.add_to(CATALOGUE)
