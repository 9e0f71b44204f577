"""Runs the jobs of the shop: python job_worker.py"""

# --8<-- [start:worker]
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from shop.jobs import queue  # noqa: E402

from matador.jobs import Worker  # noqa: E402 - after the setup

if __name__ == "__main__":
    Worker(queue).run()
# --8<-- [end:worker]
