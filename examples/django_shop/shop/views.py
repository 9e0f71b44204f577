"""The views."""

# --8<-- [start:views]
import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from matador.django import producer, send_on_commit
from shop.events import OrderPlaced
from shop.jobs import export_orders
from shop.models import Order


@transaction.atomic
def place_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(amount=json.loads(request.body)["amount"])
    send_on_commit(OrderPlaced(order.pk, order.amount))  # not sent if the transaction fails
    return JsonResponse({"order": order.pk}, status=202)


def export(request: HttpRequest) -> JsonResponse:
    handle = export_orders.sync().add(since=json.loads(request.body)["since"])  # a job
    return JsonResponse({"job": handle.id}, status=202)


def health(request: HttpRequest) -> JsonResponse:
    found = producer().health()
    status = 200 if found.status == "healthy" else 503
    return JsonResponse({"status": found.status}, status=status)


# --8<-- [end:views]
