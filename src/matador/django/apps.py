"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class MatadorConfig(AppConfig):
    """Registers ``manage.py matador_worker``."""

    name = "matador.django"
    label = "matador"
    verbose_name = "Matador"
