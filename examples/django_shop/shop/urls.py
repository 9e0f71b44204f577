"""The addresses."""

from django.urls import path

from shop.views import export, health, place_order

urlpatterns = [
    path("orders", place_order),
    path("exports", export),
    path("health", health),
]
