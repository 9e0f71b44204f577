"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class MatadorConfig(AppConfig):
    """Makes ``manage.py matador_worker`` known."""

    name = "matador.django"
    label = "matador"
    verbose_name = "Matador"
