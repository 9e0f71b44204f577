"""``--where``: small conditions on payload fields, such as ``amount > 100 and country == 'NL'``.

Read with Python's own parser and then only ever compared: nothing of it is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from matador.cli.output import UsageError
from matador.model.options import suggestion

Value: TypeAlias = Callable[[Any], Any]

_CONSTANTS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HELP = (
    "write for example \"amount > 100 and country in ['NL', 'BE']\" "
    "(== != < <= > >= in, not, and, or, strings, numbers, true, false, null)"
)


class Where:
    """A condition on a payload. A field that is not there is null; unlike things have no order.

    ``data.amount`` is the same as ``amount``, unless the payload has a field ``data``.

    Example:
        >>> Where("customer.country == 'NL' and amount > 100")(
        ...     {"amount": 200, "customer": {"country": "NL"}})
        True
    """

    def __init__(self, text: str) -> None:
        self._unseen: set[str] = set()
        self._known: set[str] = set()
        try:
            parsed = ast.parse(text.strip(), mode="eval")
            self._decide = self._value(parsed.body)
        except SyntaxError as error:
            at = f" at column {error.offset}" if error.offset else ""
            equals = "; compare with ==" if "=" in text and "==" not in text else ""
            raise UsageError(f"--where: {error.msg}{at}{equals}; {_HELP}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"--where: {error or 'too deep'}; {_HELP}") from None

    def __call__(self, payload: Any) -> bool:
        """Does it hold?"""
        if isinstance(payload, Mapping):
            self._known.update(str(name) for name in cast("Mapping[Any, Any]", payload))
        return bool(self._decide(payload))

    def doubts(self) -> list[str]:
        """Fields that no payload had so far: misspelt, perhaps."""
        if not self._known:
            return []
        return [
            f"no payload has a field {name!r}{suggestion(name, self._known)}"
            for name in sorted(self._unseen)
        ]

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self._value(part) for part in values]
                if isinstance(op, ast.And):
                    return lambda payload: all(part(payload) for part in parts)
                return lambda payload: any(part(payload) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._value(operand)
                return lambda payload: not inner(payload)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return _constant(-number)
            case ast.Compare(left=left, ops=operators, comparators=others):
                return self._comparison(left, operators, others)
            case ast.Constant(value=str() | int() | float() | None as constant):
                return _constant(constant)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                elements = [self._value(item) for item in items]
                return lambda payload: [element(payload) for element in elements]
            case ast.Name(id=name) if name in _CONSTANTS:
                return _constant(_CONSTANTS[name])
            case _:
                return self._field(_path(node))

    def _comparison(
        self, left: ast.expr, operators: Sequence[ast.cmpop], others: Sequence[ast.expr]
    ) -> Value:
        values = [self._value(left), *(self._value(other) for other in others)]
        tests = [_test(one) for one in operators]

        def compare(payload: Any) -> bool:
            given = [value(payload) for value in values]
            return all(test(a, b) for test, a, b in zip(tests, given[:-1], given[1:], strict=True))

        return compare

    def _field(self, path: Sequence[str | int]) -> Value:
        first = str(path[0])
        if first != "data" or len(path) == 1:
            self._unseen.add(first)

        def look(payload: Any) -> Any:
            steps = path
            if first == "data" and isinstance(payload, Mapping) and "data" not in payload:
                steps = path[1:]
            found, seen = _found(payload, steps)
            if seen:
                self._unseen.discard(first)
            return found

        return look


def _found(value: Any, steps: Iterable[str | int]) -> tuple[Any, bool]:
    """What lies at the end of a path, and whether its first step is there."""
    seen = False
    for number, step in enumerate(steps):
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            there = step in fields
            value = fields.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            elements = cast("list[Any]", value)
            there = -len(elements) <= step < len(elements)
            value = elements[step] if there else None
        else:
            there, value = False, None
        seen = seen or (number == 0 and there)
    return value, seen


def _path(node: ast.expr) -> list[str | int]:
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=inner, attr=name):
            return [*_path(inner), name]
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as key)):
            return [*_path(inner), key]
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed")


def _constant(value: Any) -> Value:
    return lambda _: value


def _test(op: ast.cmpop) -> Callable[[Any, Any], bool]:
    ordering = _ORDER.get(type(op))
    if ordering is not None:
        return lambda a, b: _alike(a, b) and ordering(a, b)
    match op:
        case ast.Eq() | ast.Is():
            return _equal
        case ast.NotEq() | ast.IsNot():
            return lambda a, b: not _equal(a, b)
        case ast.In():
            return _contains
        case ast.NotIn():
            return lambda a, b: not _contains(a, b)
        case _:
            raise ValueError(f"{type(op).__name__} is not allowed")


def _alike(a: Any, b: Any) -> bool:
    """Have they an order? Numbers among themselves, and texts; true and false are no numbers."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b))
    return numbers or (isinstance(a, str) and isinstance(b, str))


def _equal(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _contains(item: Any, container: Any) -> bool:
    if isinstance(container, str):
        return isinstance(item, str) and item in container
    if isinstance(container, list):
        return any(_equal(item, one) for one in cast("list[Any]", container))
    return isinstance(container, Mapping) and item in cast("Mapping[Any, Any]", container)
