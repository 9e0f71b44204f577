"""The tables."""

from django.db import models


class Order(models.Model):
    """An order, and whether its receipt was sent."""

    amount = models.IntegerField()
    receipt_sent = models.BooleanField(default=False)
