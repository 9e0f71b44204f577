"""``tests/conformance.toml`` says clause by clause what Matador must do, and which tests show it.

Here: each of those tests exists, is collected by pytest, and runs. Their files are read, and only
the suites that a class of tests inherits from are imported.
"""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLAUSES: dict[str, Any] = tomllib.loads((ROOT / "tests" / "conformance.toml").read_text("utf-8"))
IDS: list[str] = CLAUSES.pop("ids")

Function = ast.FunctionDef | ast.AsyncFunctionDef
NEVER_RUN = ("mark.skip", "mark.xfail")
SHORTEST_REASON = 20
MOST_MISSING = 0
"""How many clauses may have no test. Lower it when one of them has."""


def clauses() -> Iterator[tuple[str, dict[str, Any]]]:
    for id_, found in CLAUSES.items():
        yield from ((id_, clause) for clause in found)


def test_every_id_has_clauses_and_is_there_once() -> None:
    assert [id_ for id_, times in Counter(IDS).items() if times > 1] == []
    assert list(CLAUSES) == IDS, "in the order of ids"
    assert [id_ for id_ in IDS if not CLAUSES[id_]] == []


def test_no_clause_is_said_twice_or_without_evidence() -> None:
    said = Counter((id_, clause["clause"]) for id_, clause in clauses())
    assert [one for one, times in said.items() if times > 1] == []
    for id_, clause in clauses():
        where = f"{id_}: {clause['clause']}"
        evidence = clause.keys() - {"clause"}
        assert evidence, f"{where}: name tests, or say why there are none: missing"
        assert evidence <= {"tests", "benchmark", "missing"}, where
        assert "missing" not in evidence or evidence == {"missing"}, where
        assert all(clause[one] for one in evidence), f"{where}: empty"
        assert len(set(clause.get("tests", ()))) == len(clause.get("tests", ())), where


@pytest.mark.parametrize("id_", IDS)
def test_the_tests_of_a_requirement_exist_and_run(id_: str) -> None:
    problems = [
        f"{clause['clause']}: {problem}"
        for clause in CLAUSES[id_]
        for test in clause.get("tests", ())
        if (problem := problem_of(test)) is not None
    ]
    assert problems == []


def test_the_benchmarks_exist() -> None:
    named = {clause["benchmark"] for _, clause in clauses() if "benchmark" in clause}
    assert [one for one in sorted(named) if not (ROOT / one).is_file()] == []


def test_a_fault_that_is_played_has_a_scenario() -> None:
    """``test_holds`` plays many: the one of the fault must be among them."""
    played = [
        (id_, test.partition("::")[0])
        for id_, clause in clauses()
        for test in clause.get("tests", ())
        if id_.startswith("F") and test.endswith("::test_holds")
    ]
    assert played
    for id_, file in played:
        assert any(one.partition("-")[0] == id_ for one in scenarios(file)), (
            f"{file} plays no {id_}"
        )


def test_what_is_missing_is_said_and_does_not_grow() -> None:
    """``pytest -rP`` prints the list."""
    missing = [(id_, clause) for id_, clause in clauses() if "missing" in clause]
    for id_, clause in missing:
        print(f"{id_}: {clause['clause']}: {clause['missing']}")
    assert [one for _, one in missing if len(one["missing"]) < SHORTEST_REASON] == []
    assert len(missing) <= MOST_MISSING


# -- whether pytest runs a test --------------------------------------------------------------------


def problem_of(test: str) -> str | None:
    """Why pytest would not run a test; None if it runs it."""
    name, *path = test.split("::")
    file = ROOT / name
    if not (name.startswith("tests/") and file.name.startswith("test_") and file.is_file()):
        return f"there is no file of tests {name}"
    return _problem_in(parsed(file), path, test)


def scenarios(file: str) -> set[str]:
    """The names of those that a file of fault scenarios plays."""
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    if hasattr(module, "SCENARIOS"):
        return {one.name for one in module.SCENARIOS}
    (names,) = [one.args[1] for one in module.test_holds.pytestmark if one.name == "parametrize"]
    return set(names)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _problem_in(module: ast.Module, path: list[str], test: str) -> str | None:
    if not path or not path[-1].startswith("test_") or "[" in path[-1]:
        return f"{test} is not file::test or file::Class::test"
    if _is_marked(_module_marks(module)):
        return f"the file of {test} is skipped"
    body: list[ast.stmt] = module.body
    for name in path[:-1]:
        cls = _named(body, name, ast.ClassDef)
        if cls is None or not name.startswith("Test"):
            return f"{test}: there is no class of tests {name}"
        if _is_marked(cls.decorator_list):
            return f"{test}: {name} is skipped"
        if _inherits(module, cls, path[-1]):
            return None
        body = cls.body
    found = _named(body, path[-1], ast.FunctionDef, ast.AsyncFunctionDef)
    if found is None:
        return f"{test} does not exist"
    if _is_marked(found.decorator_list) or _skips_at_once(found):
        return f"{test} is skipped, or expected to fail"
    return None


def _named(body: list[ast.stmt], name: str, *kinds: type[Any]) -> Any:
    named = (one for one in body if isinstance(one, kinds))
    return next((one for one in named if getattr(one, "name", None) == name), None)


def _inherits(module: ast.Module, cls: ast.ClassDef, test: str) -> bool:
    """Whether a class has a test from one of its bases, here or in what is imported."""
    if _named(cls.body, test, ast.FunctionDef, ast.AsyncFunctionDef) is not None:
        return False
    for base in cls.bases:
        name = ast.unparse(base)
        here = _named(module.body, name, ast.ClassDef)
        if here is not None:
            own = _named(here.body, test, ast.FunctionDef, ast.AsyncFunctionDef)
            if own is not None and not _is_marked(own.decorator_list):
                return True
            if own is None and _inherits(module, here, test):
                return True
        elif (suite := _imported(module, name)) is not None:
            function = getattr(suite, test, None)
            marks: list[pytest.Mark] = getattr(function, "pytestmark", [])
            return function is not None and not {"skip", "xfail"} & {one.name for one in marks}
    return False


def _imported(module: ast.Module, name: str) -> Any:
    for one in ast.walk(module):
        if isinstance(one, ast.ImportFrom) and one.module is not None:
            for alias in one.names:
                if (alias.asname or alias.name) == name:
                    return getattr(importlib.import_module(one.module), alias.name)
    return None


def _module_marks(module: ast.Module) -> list[ast.expr]:
    for one in module.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark":
            return one.value.elts if isinstance(one.value, ast.List) else [one.value]
    return []


def _is_marked(marks: list[ast.expr]) -> bool:
    """Whether one of them keeps a test from running whatever the machine has."""
    for mark in marks:
        call = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)
        if call.endswith(NEVER_RUN):
            return True
        if call.endswith("mark.skipif") and isinstance(mark, ast.Call):
            condition = mark.args[0] if mark.args else None
            if isinstance(condition, ast.Constant) and condition.value:
                return True
    return False


def _skips_at_once(test: Function) -> bool:
    first = next((one for one in test.body if not _is_docstring(one)), None)
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Call):
        return False
    return ast.unparse(first.value.func) in ("pytest.skip", "pytest.xfail")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# -- the check itself ------------------------------------------------------------------------------

SAMPLE = '''
import pytest
from matador.testing import TransportCompliance

def test_runs(): ...

@pytest.mark.parametrize("n", [1])
@pytest.mark.skipif(not SERVER, reason="no server")
async def test_runs_in_many_ways(n): ...

@pytest.mark.skip
def test_skipped(): ...

@pytest.mark.skipif(True, reason="never")
def test_never(): ...

@pytest.mark.xfail(reason="not yet")
def test_expected_to_fail(): ...

def test_leaves():
    """For now."""
    pytest.skip("later")

def helper(): ...

class Shared(TransportCompliance):
    def test_shared(self): ...

class TestInherits(Shared):
    def test_own(self): ...

@pytest.mark.skip(reason="later")
class TestLater:
    def test_own(self): ...

class Other:
    def test_own(self): ...
'''


@pytest.mark.parametrize(
    "path",
    [
        "test_runs",
        "test_runs_in_many_ways",
        "TestInherits::test_own",
        "TestInherits::test_shared",
        "TestInherits::test_complete_removes",
    ],
)
def test_a_test_that_runs_is_no_problem(path: str) -> None:
    assert _problem_in(ast.parse(SAMPLE), path.split("::"), path) is None


@pytest.mark.parametrize(
    "path",
    [
        "test_unknown",
        "test_runs[1]",
        "test_skipped",
        "test_never",
        "test_expected_to_fail",
        "test_leaves",
        "helper",
        "TestInherits",
        "TestInherits::test_unknown",
        "TestLater::test_own",
        "TestUnknown::test_own",
        "Other::test_own",
        "Shared::test_shared",
    ],
)
def test_a_test_that_would_not_run_is_found(path: str) -> None:
    assert _problem_in(ast.parse(SAMPLE), path.split("::"), path) is not None


def test_a_skipped_file_and_a_file_that_is_not_there_are_found() -> None:
    skipped = ast.parse("import pytest\npytestmark = [pytest.mark.skip]\ndef test_one(): ...")
    assert _problem_in(skipped, ["test_one"], "test_one") is not None
    for name in ("tests/test_nowhere.py", "tests/conftest.py", "src/matador/testing/plugin.py"):
        assert problem_of(f"{name}::test_one") is not None
