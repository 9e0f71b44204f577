"""The addresses."""

from django.urls import path

from shop.views import health, place_order

urlpatterns = [path("orders", place_order), path("health", health)]
