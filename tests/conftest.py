"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# A machine that is busy with other tests is slow now and then: that is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
