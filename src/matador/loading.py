"""Finds applications and other objects by ``module:attribute`` or ``file.py[:attribute]``.

Used by the command line and by the workers of a cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import matador
from matador.errors import ApplicationImportError, ConfigurationError, MissingExtraError
from matador.events.app import Matador
from matador.model.options import suggestion

if TYPE_CHECKING:
    from matador.jobs import Queue

T = TypeVar("T")

_OURS = str(Path(matador.__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")


@dataclass(frozen=True, slots=True)
class Loaded:
    """An application, and the module it was found in."""

    app: Matador
    module: ModuleType
    reference: str


def load_application(reference: str) -> Loaded:
    """The application of a reference.

    Raises:
        ConfigurationError: there is no such file, module or attribute, or it is not an application.
        ApplicationImportError: the module raised an error while it was imported.

    Example:
        >>> load_application("shop.events:app").app.consume_from
        ('events',)
    """
    return Loaded(*load_object(reference, Matador, "Matador application"), reference)


def load_target(reference: str) -> Matador | Queue:
    """The application or the job queue of a reference.

    Raises:
        ConfigurationError: there is no such file, module or attribute, or it is neither.
        ApplicationImportError: the module raised an error while it was imported.

    Example:
        >>> load_target("shop/jobs.py:emails").name
        'emails'
    """
    from matador.jobs import Queue  # most programs have no jobs

    kinds: Any = (Matador, Queue)
    return load_object(reference, kinds, "Matador application or job queue")[0]


def load_object(
    reference: str, kind: type[T], noun: str, attribute: str = "app"
) -> tuple[T, ModuleType]:
    """The object of a reference, and its module. A function is called to make the object.

    Args:
        reference: where it is.
        kind: what it must be an instance of.
        noun: what errors call it.
        attribute: the default attribute.

    Raises:
        ConfigurationError: there is no such file, module or attribute, or it is not of that kind.
        ApplicationImportError: the module raised an error while it was imported.
    """
    where, attribute = split_reference(reference, attribute)
    module = _import_file(where) if is_file(where) else _import_module(where)
    return _find(module, where, attribute, kind, noun), module


def load_objects(
    reference: str, kinds: tuple[type[T], ...], noun: str
) -> tuple[dict[str, T], ModuleType, bool]:
    """The objects of a reference by their names, its module, and whether they were named.

    ``file.py`` means all public objects of these kinds in the file, ``file.py:a,b`` those two. A
    file without any may have a function ``app`` that makes one.

    Raises:
        ConfigurationError: there is no such file, module or attribute, or it is of another kind.
        ApplicationImportError: the module raised an error while it was imported.
    """
    where, attributes = split_reference(reference, "")
    module = _import_file(where) if is_file(where) else _import_module(where)
    names = [one.strip() for one in attributes.split(",") if one.strip()]
    if not names:
        found: dict[int, tuple[str, T]] = {}
        for name, value in vars(module).items():
            if isinstance(value, kinds) and not name.startswith("_"):
                found.setdefault(id(value), (name, value))
        if found:
            return dict(found.values()), module, False
        names = ["app"]
    return {one: _find(module, where, one, kinds, noun) for one in names}, module, bool(attributes)


def split_reference(reference: str, default: str = "app") -> tuple[str, str]:
    """The module or file, and the attribute; ``default`` if none is named.

    Raises:
        ConfigurationError: no module is named.
    """
    where, _, attribute = reference.partition(":")
    if not where:
        raise ConfigurationError(f"no module in {reference!r}: write module:attribute or file.py")
    return where, attribute or default


def is_file(where: str) -> bool:
    """Is the first part of a reference a file, not a module?"""
    return where.endswith(".py") or "/" in where


def _import_file(where: str) -> ModuleType:
    path = Path(where)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        files = sorted(path.parent.glob("*.py")) if path.name else []
        known = [str(one) for one in files if one.is_file()]
        raise ConfigurationError(f"the file {where} {what}{suggestion(str(path), known)}")
    path = path.resolve()
    _make_importable(path.parent)
    taken = sys.modules.get(path.stem)
    if taken is not None and getattr(taken, "__file__", None) == str(path):
        return taken
    name = path.stem if taken is None else f"_matador_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # payload types are looked up there by their module's name
    with _import_errors(where):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # as a failed `import` does
            raise
    return module


def _import_module(where: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        with _import_errors(where):
            return importlib.import_module(where)
    except ApplicationImportError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing is None or not (where == missing or where.startswith(f"{missing}.")):
            raise
        hint = ""
        if Path(f"{where.replace('.', '/')}.py").is_file():
            hint = f"; did you mean {where.replace('.', '/')}.py?"
        raise ConfigurationError(
            f"there is no module {missing!r}, neither in this folder nor installed{hint}"
        ) from cause


def _make_importable(folder: Path) -> None:
    for path in (str(Path.cwd()), str(folder)):
        if path not in sys.path:
            sys.path.insert(0, path)


@contextlib.contextmanager
def _import_errors(where: str) -> Generator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, MissingExtraError):  # it says what to do, wherever it was raised
            raise
        said = str(error).strip() or "no message"
        raise ApplicationImportError(
            f"importing {where} failed at {_place(error)}: {type(error).__name__}: {said}"
        ) from error


def _place(error: BaseException) -> str:
    """The user's line that failed: the last one in a file that is neither Matador's nor Python's.

    Packages that are installed count only if no line of the user's does.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [
        frame
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not frame.filename.startswith((_OURS, "<"))
    ]
    for installed in (False, True):
        for frame in frames:
            parts = Path(frame.filename).parts
            packaged = "site-packages" in parts or "dist-packages" in parts
            if packaged == installed and (packaged or not frame.filename.startswith(_PYTHON)):
                return f"{_short(frame.filename)}:{frame.lineno}"
    return "its first line"


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _find(
    module: ModuleType,
    where: str,
    attribute: str,
    kind: type[T] | tuple[type[T], ...],
    noun: str,
) -> T:
    found: Any = module
    for step in attribute.split("."):
        if not hasattr(found, step):
            known = [name for name, value in vars(module).items() if isinstance(value, kind)]
            if known:
                hint = suggestion(attribute, known) or (
                    f"; it has {', '.join(f'{where}:{name}' for name in known)}"
                )
            else:
                hint = f"; it has no {noun}"
            raise ConfigurationError(f"{where} has no attribute {attribute!r}{hint}")
        found = getattr(found, step)
    if not isinstance(found, kind) and inspect.isroutine(found):
        found = _call(found, where, attribute)
    if not isinstance(found, kind):
        article = "an" if noun[0] in "aeiou" else "a"
        raise ConfigurationError(
            f"{where}:{attribute} is of type {type(found).__name__}, not {article} {noun}"
        )
    return found


def _call(factory: Any, where: str, attribute: str) -> Any:
    if inspect.iscoroutinefunction(factory):
        raise ConfigurationError(f"{where}:{attribute} is async; a factory must not be")
    needed = [
        one.name
        for one in inspect.signature(factory).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigurationError(f"{where}:{attribute} needs arguments: {', '.join(needed)}")
    with _import_errors(f"{where}:{attribute}"):
        return factory()
