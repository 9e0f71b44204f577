"""``matador docs`` and ``matador schema check``: what an application sends and handles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from matador.catalog.asyncapi import KIND, Document, asyncapi
from matador.catalog.compatibility import Side, compare
from matador.catalog.html_page import html_page
from matador.catalog.yaml_text import yaml_text
from matador.cli.commands import Commands, Common, File, a_path, choice, option
from matador.cli.output import FAILED, UsageError, note, plural, results, warn, wrong_usage
from matador.cli.receivers import catalogue_of, find
from matador.errors import ConfigurationError

FORMATS = ("asyncapi", "json", "yaml", "html")
_SIDES = ("readers", "writers", "both")
_LARGEST = 64 << 20

schema = Commands("Check that a change of payloads does not break other programs.")


def docs(
    app: File,
    *,
    format: Annotated[
        str,
        choice(
            "FORMAT",
            "AsyncAPI as JSON (asyncapi or json) or YAML, or an HTML page.",
            "--format",
            FORMATS,
        ),
    ] = "asyncapi",
    output: Annotated[
        Path | None, option("FILE", "Write to this file.", "--output", "-o", parser=a_path)
    ] = None,
    html: Annotated[
        Path | None, option("FILE", "Also write the HTML page.", "--html", parser=a_path)
    ] = None,
    title: Annotated[str | None, option("TEXT", "Default: the namespace.")] = None,
    api_version: Annotated[
        str | None, option("TEXT", "Default: the module's __version__.", "--api-version")
    ] = None,
    common: Common,
) -> None:
    """Describe all events, jobs, commands and messages, and what receives them.

    Everything in the application's module is described: applications, job queues and workers,
    RPC servers, subscribers and queue services. Prints an AsyncAPI 3 document unless --output
    names a file. Nothing is connected.
    """
    document = _document(app, common, title, api_version)
    text = _written(document, "json" if format == "asyncapi" else format)
    if html is not None:
        _write(html, html_page(document))
    if output is not None:
        _write(output, text)
    counts = _counts(document)
    if common.as_json and (output is not None or format not in ("asyncapi", "json")):
        paths = {"output": output, "html": html}
        common.show({**counts, **{name: one and str(one) for name, one in paths.items()}})
    elif output is None:
        results().write(text)
        results().flush()
    for path in (output, html):
        if path is not None and not common.as_json:
            listed = ", ".join(plural(number, name[:-1]) for name, number in counts.items())
            note(f"wrote {path}: {listed}")


@schema.add("matador schema check shop.py --against asyncapi.json")
def check(
    app: File,
    *,
    against: Annotated[
        Path,
        option("FILE", "The AsyncAPI document (JSON) to compare with.", "--against", parser=a_path),
    ],
    sides: Annotated[
        str,
        choice(
            "SIDE",
            "Whom a change must not break: readers of the old version, writers of the old "
            "version, or both.",
            "--for",
            _SIDES,
        ),
    ] = "both",
    common: Common,
) -> None:
    """Fail if payloads have changed in a way that breaks other programs.

    The file is what `matador docs APP --output FILE` wrote for the old version. A change breaks
    writers if the new version cannot handle messages of the old one, and readers if the old
    version cannot handle messages of the new one. Prints one line for each such change.
    """
    with wrong_usage(ConfigurationError):
        compared = compare(_read(against), _document(app, common))
    wanted = set(_SIDES[:2]) if sides == "both" else {cast("Side", sides)}
    changes = [one for one in compared.changes if wanted & set(one.breaks)]
    for text in compared.notes:
        note(text)
    found = [
        {"message": one.message, "path": one.path, "change": one.text, "breaks": one.breaks}
        for one in changes
    ]
    common.show(
        {"compatible": not changes, "changes": found, "notes": compared.notes},
        *([str(one) for one in changes] or [f"compatible with {against}"]),
    )
    if changes:
        raise typer.Exit(FAILED)


def _document(
    app: str, common: Common, title: str | None = None, version: str | None = None
) -> Document:
    found = find(app, common.level())
    main = next(iter(found.receivers.values()))
    document, problems = asyncapi(catalogue_of(main, found.module, title, version))
    for problem in problems:
        warn(problem)
    return document


def _written(document: Document, format: str) -> str:
    if format == "html":
        return html_page(document)
    # What msgspec and pydantic call a default may be a value that JSON lacks.
    text = json.dumps(document, indent=2, default=str, ensure_ascii=False)
    return yaml_text(json.loads(text)) if format == "yaml" else text + "\n"


def _counts(document: Document) -> dict[str, int]:
    kinds = [one[KIND] for one in document["components"]["messages"].values()]
    named = {"events": "event", "jobs": "job", "commands": "command", "messages": "message"}
    return {name: kinds.count(kind) for name, kind in named.items()}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path) -> Document:
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} is too large for an AsyncAPI document")
        found: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not JSON: write it with `matador docs APP --output {path}`"
        ) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not an AsyncAPI document")
    return cast("Document", found)
