"""Events: one event becomes one independent message per subscriber. The application object."""
