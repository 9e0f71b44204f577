"""Commands for ``manage.py``."""
