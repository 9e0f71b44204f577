"""One order event in each of the five payload kinds, with fields of every sort."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic

from matador.model.event import EventType, event, event_type_of


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class DataclassLine:
    sku: str
    count: int


@event("order.dataclass", description="An order as a dataclass.")
@dataclass(frozen=True)
class DataclassOrder:
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[DataclassLine]
    labels: dict[str, str] = field(default_factory=dict[str, str])
    note: str | None = None


@event("order.slots", description="An order as a dataclass with slots.")
@dataclass(frozen=True, slots=True)
class SlotsOrder:
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[DataclassLine]
    labels: dict[str, str] = field(default_factory=dict[str, str])
    note: str | None = None


class StructLine(msgspec.Struct, frozen=True):
    sku: str
    count: int


@event("order.struct", description="An order as a msgspec struct.")
class StructOrder(msgspec.Struct, frozen=True):
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[StructLine]
    labels: dict[str, str] = {}
    note: str | None = None


class PydanticLine(pydantic.BaseModel):
    sku: str
    count: int


@event("order.pydantic", description="An order as a pydantic model.")
class PydanticOrder(pydantic.BaseModel):
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[PydanticLine]
    labels: dict[str, str] = {}
    note: str | None = None


@attrs.frozen
class AttrsLine:
    sku: str
    count: int


@event("order.attrs", description="An order as an attrs class.")
@attrs.frozen
class AttrsOrder:
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[AttrsLine]
    labels: dict[str, str] = attrs.Factory(dict[str, str])
    note: str | None = None


class TypedDictLine(TypedDict):
    sku: str
    count: int


@event("order.typeddict", description="An order as a TypedDict.")
class TypedDictOrder(TypedDict):
    order_id: str
    price: Decimal
    placed_at: datetime
    status: Status
    reference: int | str
    lines: list[TypedDictLine]
    labels: dict[str, str]
    note: str | None


class Kind(NamedTuple):
    """One kind of payload: the event class, and the class of the lines in it."""

    order: type[Any]
    line: type[Any]

    @property
    def event(self) -> EventType:
        return event_type_of(self.order)

    def make(self, **changes: Any) -> Any:
        """An order of this kind."""
        fields: dict[str, Any] = {
            "order_id": "o-1 é漢😀",
            "price": Decimal("12.50"),
            "placed_at": datetime(2026, 11, 15, 19, 2, 37, 435123, tzinfo=UTC),
            "status": Status.PAID,
            "reference": "r-1",
            "lines": [self.line(sku="a", count=1), self.line(sku="b", count=2)],
            "labels": {"tenant": "acme"},
            "note": None,
        }
        return self.order(**fields | changes)


KINDS = {
    "dataclass": Kind(DataclassOrder, DataclassLine),
    "slots": Kind(SlotsOrder, DataclassLine),
    "struct": Kind(StructOrder, StructLine),
    "pydantic": Kind(PydanticOrder, PydanticLine),
    "attrs": Kind(AttrsOrder, AttrsLine),
    "typeddict": Kind(TypedDictOrder, TypedDictLine),
}


def plain_order(**changes: Any) -> dict[str, Any]:
    """An order as plain JSON data, as a command line or another language would write it."""
    fields: dict[str, Any] = {
        "order_id": "o-1",
        "price": "12.50",
        "placed_at": "2026-11-15T19:02:37Z",
        "status": "open",
        "reference": 7,
        "lines": [{"sku": "a", "count": 1}],
        "labels": {},
        "note": None,
    }
    return fields | changes


def field_of(order: Any, name: str) -> Any:
    """A field of an order of any kind."""
    return getattr(order, name) if hasattr(order, name) else order[name]
