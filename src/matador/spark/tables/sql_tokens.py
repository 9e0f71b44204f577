"""Takes a text of Spark SQL apart into tokens, and writes tokens so that they can be read one way.

Spark does not get the user's text, but what ``write`` makes of it: no comments, strings with
escapes instead of special characters, and every word that is no keyword of a query in backquotes.
So it does not matter if Spark would have split the original differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from matador.errors import ConfigurationError

Kind: TypeAlias = Literal["word", "name", "text", "number", "sign"]


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# The words of queries and expressions. Any other word is a name, and can only be used as one.
KEYWORDS: Final = words(
    """
    ALL AND ANTI ANY ARRAY AS ASC BETWEEN BIGINT BINARY BOOLEAN BOTH BY BYTE CASE CAST CHAR
    CHARACTER CLUSTER COLLATE CROSS CUBE CURRENT CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP
    CURRENT_USER DATE DATEADD DATEDIFF DATE_ADD DATE_DIFF DAY DAYOFYEAR DAYS DEC DECIMAL DESC
    DISTINCT DISTRIBUTE DIV DOUBLE ELSE END ESCAPE EXCEPT EXCLUDE EXISTS EXTEND EXTRACT FALSE FILTER
    FIRST FLOAT FOLLOWING FOR FROM FULL GROUP GROUPING HAVING HOUR HOURS IF IGNORE ILIKE IN INCLUDE
    INNER INT INTEGER INTERSECT INTERVAL IS JOIN LAST LATERAL LEADING LEFT LIKE LIMIT LONG MAP
    MICROSECOND MICROSECONDS MILLISECOND MILLISECONDS MINUS MINUTE MINUTES MONTH MONTHS NANOSECOND
    NANOSECONDS NATURAL NOT NULL NULLS NUMERIC OFFSET ON OR ORDER OUTER OVER OVERLAY PARTITION
    PERCENT PIVOT PLACING POSITION PRECEDING QUALIFY QUARTER RANGE REAL RECURSIVE REGEXP RESPECT
    RIGHT RLIKE ROLLUP ROW ROWS SECOND SECONDS SELECT SEMI SESSION_USER SETS SHORT SMALLINT SOME
    SORT STRING STRUCT SUBSTR SUBSTRING TABLE TABLESAMPLE THEN TIME TIMESTAMP TIMESTAMPADD
    TIMESTAMPDIFF TIMESTAMP_LTZ TIMESTAMP_NTZ TINYINT TO TRAILING TRIM TRUE TRY_CAST UNBOUNDED
    UNION UNPIVOT
    USER USING VALUES VARCHAR VARIANT VIEW VOID WEEK WEEKS WHEN WHERE WINDOW WITH WITHIN YEAR YEARS
    """
)
# Keywords in one place only, else names: the token before them.
_AFTER: Final = {"AGGREGATE": "|>", "NAME": "BY"}

_TOKEN: Final = re.compile(
    r"""
    (?P<space>   \s+ | --[^\r\n]* )
  | (?P<number>  (?: \d+ (?: \.\d+ )? | \.\d+ ) (?: e[+-]?\d+ )? (?: bd | [lsydf] )? (?![\w.]) )
  | (?P<hex>     x ' [0-9a-f]* ' )
  | (?P<raw>     r ' [^']* ' | r " [^"]* " )
  | (?P<text>    ' (?: [^'\\] | \\. | '' )* ' | " (?: [^"\\] | \\. | "" )* " )
  | (?P<name>    ` (?: [^`] | `` )+ ` )
  | (?P<word>    [^\W\d]\w* )
  | (?P<sign>    <=> | >>> | \|> | \|\| | -> | => | :: | << | >> | <> | != | == | <= | >=
                 | [-+*/%~&|^=<>!()\[\],.:] )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_NAME: Final = re.compile(r"[\w .-]+")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;/+=()-]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, and its value without quotes and escapes."""

    kind: Kind
    value: str

    @property
    def keyword(self) -> str:
        """The word in upper case, or the sign; nothing for what was quoted, or is not ASCII."""
        is_one = self.kind in ("word", "sign") and self.value.isascii()
        return self.value.upper() if is_one else ""

    @property
    def is_name(self) -> bool:
        """Whether it may be a part of a name."""
        return self.kind in ("word", "name")


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, without comments.

    Raises:
        ConfigurationError: something in it is no part of a query, such as ``;`` or a hint.
    """
    return list(_tokens(text.strip().removesuffix(";")))


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if text.startswith("/*", at):
            at = _after_comment(text, at)
            continue
        found = _TOKEN.match(text, at)
        if found is None:
            raise refused(f"{text[at]!r}")
        at = found.end()
        whole = found[0]
        match found.lastgroup:
            case "number" | "sign" | "word" as kind:
                yield Token(kind, whole)
            case "hex":
                yield Token("number", whole)
            case "raw":
                yield Token("text", whole[2:-1])
            case "text":
                yield Token("text", _unescaped(whole))
            case "name":
                name = whole[1:-1].replace("``", "`")
                if not _NAME.fullmatch(name):
                    raise refused(f"the name {name!r}")
                yield Token("name", name)
            case _:
                pass  # space, and comments


def _after_comment(text: str, at: int) -> int:
    """The end of a comment, which may contain others."""
    if text.startswith("/*+", at):
        raise refused("a hint")
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise refused("a comment without an end")


def _unescaped(quoted: str) -> str:
    quote = quoted[0]

    def character(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "uU" and len(code) > 1:
            number = int(code[1:], 16)
            valid = number <= _LAST_CHARACTER and number not in _SURROGATES
            return chr(number) if valid else "\ufffd"
        if len(code) > 1:
            return chr(int(code, 8))
        if code in "%_":
            return f"\\{code}"  # for LIKE
        return _ESCAPED.get(code, code)

    # Doubled quotes first: an escaped one is not one of a pair.
    parts = re.split(r"(\\.)", quoted[1:-1], flags=re.DOTALL)
    single = "".join(
        one if one.startswith("\\") else one.replace(quote * 2, quote) for one in parts
    )
    return _ESCAPE.sub(character, single)


def write(tokens: Sequence[Token]) -> str:
    """The tokens as text that every lexer splits alike."""
    before = ""
    written: list[str] = []
    for token in tokens:
        match token.kind:
            case "text":
                written.append("'" + "".join(map(_safe, token.value)) + "'")
            case "name":
                written.append(f"`{token.value}`")
            case "word":
                is_keyword = token.keyword in KEYWORDS or _AFTER.get(token.keyword) == before
                written.append(token.value if is_keyword else f"`{token.value}`")
            case _:
                written.append(token.value)
        before = token.keyword
    return " ".join(written)


def _safe(character: str) -> str:
    if _PLAIN.fullmatch(character):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def refused(what: str) -> ConfigurationError:
    """The error for what a query that only reads must not contain."""
    return ConfigurationError(
        f"{what} is not allowed here: use one SELECT over the tables of the lake, which only reads"
    )
