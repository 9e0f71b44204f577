"""``Matador``: the application, and the two ways to use it besides ``async with``."""

from __future__ import annotations

from matador.events.application import Application
from matador.events.dead_letters import DeadLetterOffice
from matador.events.sync import SyncMatador
from matador.runtime.process import run


class Matador(Application):
    __doc__ = Application.__doc__

    def run(self) -> None:
        """Start, and block until SIGTERM or SIGINT; then shut down. A second signal forces it.

        For worker processes.

        Example:
            >>> if __name__ == "__main__":
            ...     app.run()
        """
        run(self)

    def sync(self) -> SyncMatador:
        """The same application for code without an event loop; it runs one in a thread.

        Example:
            >>> with app.sync() as shop:
            ...     shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return SyncMatador(self)

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """The dead letters: to look at, to send back, to delete.

        Example:
            >>> async for letter in app.dead_letters.browse():
            ...     print(letter.id, letter.stored.reason)
        """
        return DeadLetterOffice(
            transport=self.transport,
            topology=self.topology,
            codec=self.codec,
            checkpoints=self.checkpoints,
            clock=self.clock,
            check=self._check_loop,
        )
