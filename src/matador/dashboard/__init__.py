"""The web dashboard: what failed and why, and sending it again. Needs the extra ``dashboard``."""

from matador.dashboard.app import Dashboard
from matador.dashboard.options import DashboardOptions

__all__ = ["Dashboard", "DashboardOptions"]
