"""A Django project that sends events."""
