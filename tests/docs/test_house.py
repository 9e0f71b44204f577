"""The picture of the house is true: its packages are there, and its arrows are their imports."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import grimp
import pytest
from docs.assets.draw import HOUSE, IMPORTS, drawn

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "matador"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

BUILT = {path.stem for path in SOURCE.iterdir() if (path / "__init__.py").exists()} | {"errors"}
NO_PACKAGES = {"__main__", "_interrupt", "loading"}
PLANNED = {name for name, room in HOUSE.items() if room.planned}


def layers() -> list[set[str]]:
    """The layers of import-linter's contract, top first, without what is no package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["id"] == "layers"]
    found = [set(re.findall(r"\w+", layer)) - NO_PACKAGES for layer in contract["layers"]]
    return [layer for layer in found if layer]


def real_imports() -> set[tuple[str, str]]:
    """Which package imports which; the names that ``matador`` itself exports are left out."""
    graph = grimp.build_graph("matador", cache_dir=None)
    pairs = {
        (importer.split(".")[1], imported.split(".")[1])
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if "." in importer and "." in imported
    }
    return {
        (one, other)
        for one, other in pairs
        if one != other and not NO_PACKAGES.intersection((one, other))
    }


def reachable(arrows: Iterable[tuple[str, str]], start: str) -> set[str]:
    """Where arrows lead from a package, directly or over others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        following = {target for source, target in arrows if source == here} - found
        found |= following
        waiting += following
    return found


def test_the_house_has_every_package_and_every_layer() -> None:
    assert HOUSE.keys() - PLANNED == BUILT
    assert HOUSE.keys() == {name for layer in layers() for name in layer}


@pytest.mark.parametrize("name", HOUSE)
def test_the_page_says_a_sentence_about_each_package(name: str) -> None:
    row = re.search(rf"^\| `{name}` \| (.+) \|$", PAGE, re.MULTILINE)
    assert row, f"docs/architecture.md has no row for {name}"
    assert row[1].endswith("."), f"not a sentence: {row[1]}"
    assert row[1].startswith("Planned: ") == (name in PLANNED)


def test_the_page_lists_the_packages_in_the_order_of_the_layers() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    depth = {name: number for number, layer in enumerate(layers()) for name in layer}
    assert set(rows) == HOUSE.keys()
    assert rows == sorted(rows, key=lambda name: depth[name])


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_picture_shows_each_package(mode: str) -> None:
    picture = drawn()[f"house-{mode}.svg"]
    assert [name for name in HOUSE if f">{name}</text>" not in picture] == []


def test_arrows_point_down_in_the_picture_and_in_the_layers() -> None:
    depth = {name: number for number, layer in enumerate(layers()) for name in layer}
    for importer, imported in IMPORTS:
        assert HOUSE[importer].y < HOUSE[imported].y, (importer, imported)
        assert depth[importer] < depth[imported], (importer, imported)


def test_each_arrow_is_an_import() -> None:
    drawn_now = {pair for pair in IMPORTS if not PLANNED & set(pair)}
    assert drawn_now - real_imports() == set()


def test_each_import_follows_from_the_arrows() -> None:
    hidden = {
        (importer, imported)
        for importer, imported in real_imports()
        if imported not in reachable(IMPORTS, importer)
    }
    assert hidden == set(), "draw these arrows in docs/assets/draw.py, or do without the imports"
