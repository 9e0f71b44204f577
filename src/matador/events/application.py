"""The former home of ``Matador``."""

from matador.events.app import Matador as Application

__all__ = ["Application"]
