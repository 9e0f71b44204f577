"""``JsonFormatter``: log lines as JSON, with the id of the message being handled."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

import msgspec

from matador.codec.as_json import as_json
from matador.model.text import storable_text
from matador.runtime.log_context import HANDLED, LogContext
from matador.transports.credentials import without_secrets

_PREFIX = "matador_"
_LONGEST = 32_000  # characters of a text; longer ones are cut, and a line stays readable
_MOST_FIELDS = 50
# The attributes of every record; others were passed as ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON.

    A line has ``time`` (UTC), ``level``, ``logger`` and ``message``. While a message is being
    handled, it also has ``message_id``, ``queue``, ``attempt``, ``correlation_id``, and ``event``
    and ``subscriber``, ``job``, ``command`` or ``routing_key``. This includes log lines of user
    code, also from threads and tasks that it starts. Values passed as ``extra`` become fields,
    without the prefix ``matador_``. An exception has ``error_type``, ``error`` and ``traceback``.
    Passwords in addresses are masked.

    Args:
        fields: for every line, such as the name of the service.

    Example:
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(JsonFormatter({"service": "shop"}))
        >>> logging.basicConfig(level=logging.INFO, handlers=[handler])
    """

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})
        LogContext.wanted = True

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line. Never raises: values that JSON cannot represent become text."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _text(_message(record)),
            **self._fields,
        }
        handled = HANDLED.get()
        if handled is not None:
            for name, value in handled.log_fields().items():
                if value is not None:
                    line[name] = _value(value)
        extra = [item for item in vars(record).items() if item[0] not in _STANDARD]
        for name, value in extra[:_MOST_FIELDS]:
            if name.startswith(_PREFIX):
                if value is not None:
                    line[name.removeprefix(_PREFIX)] = _value(value)  # overrides the context
            else:
                line.setdefault(name, _value(value))
        _, error, begin = record.exc_info or (None, None, None)
        if error is not None:
            line.setdefault("error_type", type(error).__name__)
            line.setdefault("error", _text(error))
            line["traceback"] = _text(_traceback(error, begin))
        if record.stack_info:
            line["stack"] = _text(record.stack_info)
        try:
            return msgspec.json.encode(line).decode()
        except Exception:  # noqa: BLE001 - for example a non-text key
            return msgspec.json.encode({_text(k): _text(v) for k, v in line.items()}).decode()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - wrong arguments, or a __str__ that raises
        return f"{record.msg!s} (its arguments could not be formatted: {type(error).__name__})"


def _traceback(error: BaseException, begin: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, begin))
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        return "".join(traceback.format_tb(begin))


def _value(value: object) -> object:
    """A field value: unchanged if JSON can represent it, otherwise as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        made = as_json(value)
        if len(made) <= _LONGEST:
            return msgspec.json.decode(without_secrets(made.decode()))
    except Exception:  # noqa: BLE001 - shown as text instead
        return _text(value)
    return _text(value)


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        text = f"<{type(value).__name__}>"
    return without_secrets(storable_text(text, _LONGEST))
