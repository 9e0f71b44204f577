"""The web dashboard: shows failures and their causes, and redrives dead letters. Needs the extra
``dashboard``."""

from matador.dashboard.app import Dashboard
from matador.dashboard.options import DashboardOptions

__all__ = ["Dashboard", "DashboardOptions"]
