"""Matador in a Django project: send from views, and run subscribers with ``manage.py``.

Add ``"matador.django"`` to ``INSTALLED_APPS`` and name your application in the settings::

    MATADOR_APP = "shop.events:app"

Then ``send`` and ``send_on_commit`` work in any view, and ``manage.py matador_worker`` consumes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from django import db
from django.conf import settings

from matador.errors import ConfigurationError
from matador.events.app import Matador, SyncMatador
from matador.loading import load_application
from matador.model.sending import SendResult

P = ParamSpec("P")
R = TypeVar("R")

SETTING = "MATADOR_APP"

_db: Any = db  # Django has no types

__all__ = ["application", "producer", "send", "send_on_commit", "with_database"]


def application() -> Matador:
    """The application that ``settings.MATADOR_APP`` names: ``module:attribute``.

    Raises:
        ConfigurationError: the setting is missing, or names no application.

    Example:
        >>> application().topology.namespace
        'shop'
    """
    reference: Any = getattr(settings, SETTING, None)
    if not isinstance(reference, str) or not reference:
        raise ConfigurationError(
            f"the Django setting {SETTING} is missing: write for example "
            f'{SETTING} = "shop.events:app"'
        )
    return load_application(reference).app


@functools.lru_cache(maxsize=1)
def _producer_of(app: Matador) -> Matador:
    return app.producer()


def producer() -> SyncMatador:
    """A producer of the application, which only sends: ``application().producer().sync()``.

    Any thread may use it. It connects on first use, in each process that the server forks, and is
    shut down when the process ends.

    Example:
        >>> producer().send(OrderPlaced(order_id="1", amount=5))
    """
    made = _producer_of(application()).sync()
    if not made.app.is_running:  # a health check may be the first call
        made.start()
    return made


def send(payload: Any, /, **options: Any) -> SendResult:
    """Send an event now; returns when each message is stored. For options, see ``Matador.send``.

    Raises:
        SendFailedError: a message was not stored.

    Example:
        >>> send(OrderPlaced(order_id="1", amount=5), delay=30)
    """
    return producer().send(payload, **options)


def send_on_commit(payload: Any, /, *, using: str | None = None, **options: Any) -> None:
    """Send an event once the current transaction is committed, or now if there is none.

    If the transaction is rolled back, nothing is sent. If the process dies between the commit and
    the send, the event is lost: the database and the broker are two systems.

    Args:
        payload: the event.
        using: the alias of the database.
        **options: see ``Matador.send``.

    Example:
        >>> with transaction.atomic():
        ...     order = Order.objects.create(amount=5)
        ...     send_on_commit(OrderPlaced(order_id=str(order.pk), amount=5))
    """
    _db.transaction.on_commit(functools.partial(send, payload, **options), using=using)


def with_database(callback: Callable[P, R]) -> Callable[P, R]:
    """For sync subscribers that use the database: drop connections that are broken or too old.

    Django does this for each request. A worker has no requests, so that its connections would
    otherwise outlive a restart of the database.

    Example:
        >>> @subscriber(description="Email the receipt.", idempotent="yes")
        ... @with_database
        ... def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...
    """

    @functools.wraps(callback)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        _db.close_old_connections()
        try:
            return callback(*args, **kwargs)
        finally:
            _db.close_old_connections()

    return wrapped
