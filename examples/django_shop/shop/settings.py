"""The settings of the project."""

from pathlib import Path

FOLDER = Path(__file__).parents[1]
SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "orders.sqlite3"}}
USE_TZ = True
TIME_ZONE = "UTC"

# --8<-- [start:settings]
INSTALLED_APPS = ["matador.django", "shop"]
MATADOR_APP = "shop.events:app"
# --8<-- [end:settings]
