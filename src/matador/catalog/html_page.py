"""An AsyncAPI document as one readable HTML page, without scripts and without other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, cast

from matador.catalog.asyncapi import ALIASES, KEY, KIND, Document, data_schema

_GROUPS = {
    "event": ("Events", "Sent to each of their subscribers, once each."),
    "job": ("Jobs", "Added to a queue and run by a worker. The payload is the data of the job."),
    "command": ("Commands", "Called over RPC, and answered with a reply."),
    "message": ("Messages", "Published by routing key, or sent to a channel."),
}
_MOST_LEVELS = 6

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --soft: #8881; --link: #2563eb }
@media (prefers-color-scheme: dark) { :root { --quiet: #aaa; --link: #7aa7ff } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem }
a { color: var(--link) } h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem }
article { border-top: 1px solid var(--line); padding: .5rem 0 1rem }
h3 { font-family: ui-monospace, monospace; font-size: 1.05rem; margin: .75rem 0 0 }
p { margin: .25rem 0 .75rem } .quiet { color: var(--quiet) }
nav ul { columns: 16rem; padding-left: 1.2rem } .wide { overflow-x: auto }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100% }
caption { text-align: left; font-weight: 600 }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left;
  vertical-align: top } th { font-weight: 600 }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
"""


def html_page(document: Document) -> str:
    """The page. Every text in it is escaped.

    Example:
        >>> Path("events.html").write_text(html_page(document))
    """
    return "\n".join(_Page(document).lines())


class _Page:
    def __init__(self, document: Document) -> None:
        self._document = document
        components = document["components"]
        self._messages: dict[str, Document] = components["messages"]
        self._schemas: dict[str, Document] = components["schemas"]

    def lines(self) -> Iterator[str]:
        info = self._document["info"]
        title = escape(str(info["title"]))
        yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
        yield f'<h1>{title}</h1>\n<p class="quiet">Version {escape(str(info["version"]))}</p>'
        groups = {
            kind: {name: one for name, one in self._messages.items() if one[KIND] == kind}
            for kind in _GROUPS
        }
        yield '<nav aria-label="Messages"><ul>'
        for found in groups.values():
            for name, one in found.items():
                yield f'<li><a href="#{escape(name)}"><code>{escape(one[KEY])}</code></a></li>'
        yield "</ul></nav>\n<main>"
        for kind, found in groups.items():
            if found:
                heading, text = _GROUPS[kind]
                yield f'<section>\n<h2>{heading}</h2>\n<p class="quiet">{text}</p>'
                for name, one in found.items():
                    yield from self._article(name, one)
                yield "</section>"
        yield "</main>\n</body>\n</html>\n"

    def _article(self, name: str, message: Document) -> Iterator[str]:
        yield f'<article id="{escape(name)}">\n<h3>{escape(message[KEY])}</h3>'
        yield f"<p>{escape(message.get('summary') or '')}</p>"
        if aliases := message.get(ALIASES):
            yield f'<p class="quiet">Also accepted as {_codes(aliases)}.</p>'
        yield from self._receivers(name)
        yield from self._payload("Payload", message)
        for reply in self._replies(name):
            yield from self._payload("Reply", reply)
        yield "</article>"

    def _operations(self, name: str) -> Iterator[tuple[str, Document]]:
        """The operations of a message, each with the address of its queue."""
        for one in self._document["operations"].values():
            channel_id = one["channel"]["$ref"].removeprefix("#/channels/")
            wanted = f"{one['channel']['$ref']}/messages/{name}"
            if any(message["$ref"] == wanted for message in one["messages"]):
                yield self._document["channels"][channel_id]["address"], one

    def _receivers(self, name: str) -> Iterator[str]:
        rows: list[tuple[str, str, str, str]] = []
        for address, one in self._operations(name):
            if one["action"] == "receive":
                options = [
                    f"{key.removeprefix('x-matador-')}: {value}"
                    for key, value in one.items()
                    if key.startswith("x-matador-")
                ]
                rows.append((one["title"], address, one["summary"], ", ".join(options)))
            else:
                rows += [
                    (other, address, "In another service.", "")
                    for other in one.get("x-matador-handled-elsewhere", ())
                ]
        if not rows:
            yield '<p class="quiet">It has no receivers.</p>'
            return
        yield from _table("Received by", ("Name", "Queue", "What it does", "Options"), rows)

    def _replies(self, name: str) -> Iterator[Document]:
        for _, one in self._operations(name):
            for reference in one.get("reply", {}).get("messages", ()):
                yield self._messages[reference["$ref"].rpartition("/messages/")[2]]

    def _payload(self, caption: str, message: Document) -> Iterator[str]:
        schema = data_schema(message)
        rows = list(self._fields(schema, "", ()))
        if rows:
            yield from _table(caption, ("Field", "Type", "Required", "Description"), rows)
        else:
            yield f"<p>{caption}: <code>{escape(self._type(schema))}</code></p>"

    def _fields(
        self, schema: Any, prefix: str, within: tuple[str, ...]
    ) -> Iterator[tuple[str, str, str, str]]:
        """The fields of an object, those of objects in it included."""
        reference = str(cast("Document", schema).get("$ref", "")) if _is_object(schema) else ""
        if reference in within or len(within) >= _MOST_LEVELS:
            return
        found = self._resolved(schema)
        required = found.get("required", ())
        for name, field in cast("Document", found.get("properties", {})).items():
            path = f"{prefix}{name}"
            about = self._resolved(field)
            text = str(field.get("description") or about.get("description") or "")
            if "default" in field and field["default"] not in (None, [], {}):
                text = f"{text} Default: {field['default']!r}.".strip()
            yield path, self._type(field), "yes" if name in required else "no", text
            # Unions and optional objects: the fields of each alternative that has some.
            for one in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
                inner = self._resolved(one)
                step = (*within, reference or f"#{path}")
                if "properties" in inner:
                    yield from self._fields(one, f"{path}.", step)
                elif isinstance(inner.get("items"), dict):
                    yield from self._fields(inner["items"], f"{path}[].", step)

    def _resolved(self, schema: Any) -> Document:
        if not isinstance(schema, dict):
            return {}
        found = cast("Document", schema)
        seen = 0
        while "$ref" in found and seen < _MOST_LEVELS:
            name = str(found["$ref"]).rpartition("/")[2]
            found, seen = self._schemas.get(name, {}), seen + 1
        return found

    def _type(self, schema: Any) -> str:
        if not isinstance(schema, dict) or not schema:
            return "anything"
        found = cast("Document", schema)
        if "$ref" in found:
            about = self._resolved(found)
            if "enum" in about:
                return self._type(about)
            return str(about.get("title") or found["$ref"].rpartition("/")[2])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in found:
                return " or ".join(dict.fromkeys(self._type(one) for one in found[word]))
        if "const" in found:
            return repr(found["const"])
        if "enum" in found:
            return " or ".join(repr(one) for one in found["enum"])
        kinds = found.get("type", "anything")
        listed = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
        kind = " or ".join(str(one) for one in listed)
        if kind == "array":
            return f"list of {self._type(found.get('items', {}))}"
        if kind == "object" and isinstance(found.get("additionalProperties"), dict):
            return f"map of {self._type(found['additionalProperties'])}"
        return f"{kind} ({found['format']})" if "format" in found else kind


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"<code>{escape(one)}</code>" for one in texts)


def _table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f'<div class="wide"><table><caption>{escape(caption)}</caption>'
    yield "<thead><tr>" + "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    yield "</tr></thead><tbody>"
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(one)}</td>" for one in rest)
        yield f'<tr><th scope="row"><code>{escape(first)}</code></th>{cells}</tr>'
    yield "</tbody></table></div>"
