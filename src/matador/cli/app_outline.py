"""The events, subscribers and queues of an application, read from its source text.

The shell asks for them when somebody presses Tab. Nothing is imported or run: the file may be a
script that starts to work when it is imported. What the text does not spell out is not found.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from matador.loading import is_file, split_reference

_LARGEST = 1 << 20  # bytes of a file
_MOST_FILES = 100
_PATIENCE = 0.5  # seconds
# What a shell leaves as it is: nobody should run what they did not type.
_HARMLESS = re.compile(r"[A-Za-z0-9_.,/@%+-]+")


@dataclass(slots=True)
class Outline:
    """Names, each with its description."""

    events: dict[str, str] = field(default_factory=dict[str, str])
    subscribers: dict[str, str] = field(default_factory=dict[str, str])
    queues: dict[str, str] = field(default_factory=dict[str, str])


def outline(reference: str, folder: Path | None = None) -> Outline:
    """What an application's file declares, and the modules of the same project that it imports.

    Example:
        >>> outline("shop.py").events
        {'order.placed': 'A customer placed an order.'}
    """
    where, _ = split_reference(reference)
    here = folder or Path.cwd()
    start = here / where if is_file(where) else _module(here, where)
    found, until = Outline(), time.monotonic() + _PATIENCE
    waiting, seen = [start] if start else [], set[Path]()
    while waiting and len(seen) < _MOST_FILES and time.monotonic() < until:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        tree = _parsed(file)
        if tree is not None:
            _collect(tree, found)
            waiting += _imported(tree, file, here)
    if not found.queues:
        found.queues["events"] = ""  # that of an application without a topology
    return found


def _parsed(file: Path) -> ast.Module | None:
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _collect(tree: ast.Module, found: Outline) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and _called(call).endswith("subscriber"):
                    name = _option(call, "name") or node.name.replace("_", "-")
                    _add(found.subscribers, name, _option(call, "description"))
        elif isinstance(node, ast.Call):
            _collect_call(node, found)


def _collect_call(call: ast.Call, found: Outline) -> None:
    first, about = _text(call.args[0]) if call.args else None, _option(call, "description")
    match _called(call):
        case "event" if about is not None:
            _add(found.events, first, about)
        case "SubscriberStub":
            _add(found.subscribers, first, about)
        case "WorkQueue":
            _add(found.queues, first, None)
        case "Topology":
            for one in call.keywords:
                if one.arg == "queues" and isinstance(one.value, ast.List | ast.Tuple):
                    for queue in one.value.elts:
                        _add(found.queues, _text(queue), None)
        case _:
            pass


def _add(names: dict[str, str], name: str | None, about: str | None) -> None:
    if name is not None and _HARMLESS.fullmatch(name):
        names.setdefault(name, " ".join((about or "").split()))


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _option(call: ast.Call, name: str) -> str | None:
    return next((_text(one.value) for one in call.keywords if one.arg == name), None)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _imported(tree: ast.Module, file: Path, here: Path) -> Iterator[Path]:
    """The files of the modules that a file imports, as far as they are in the same project."""
    for node in ast.walk(tree):
        names, folders = list[str](), (file.parent, here)
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folders = (file.parents[node.level - 1],) if node.level <= len(file.parents) else ()
            prefix = f"{base}." if base else ""
            names = [base, *(f"{prefix}{one.name}" for one in node.names)]
        for folder in folders:
            found = [_module(folder, name) for name in names if name]
            yield from (one for one in found if one is not None)


def _module(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*name.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None
