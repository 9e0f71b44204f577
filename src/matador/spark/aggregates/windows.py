"""Counts of messages and attempts by subscriber and window, and histograms of their times.

A job queue counts as a subscriber, and the name of a job as an event.

Counts and histograms of two sets of rows add up, so that new rows are added to what is there, and
minutes become hours. A histogram has buckets that are two percent wide: a percentile is at most one
percent off. It is a map of bucket numbers to counts, which any engine can read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from matador.errors import ConfigurationError
from matador.model.options import Seconds, seconds
from matador.policy.retry import Outcome
from matador.spark.runtime.arrow import Schema, Table, compute, pa

WINDOW: Final = 60
"""The length of the stored windows, in seconds."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
WHO: Final = ("way", "event_key", "subscriber")
"""The keys of counts and times: a subscriber of an event, or the jobs of a name in a queue."""

KEY: Final = [*WHO, "window_start"]

_INSTANT = pa.timestamp("us", tz="UTC")
_MICROS = 1_000_000
_DAY = 86_400 * _MICROS
_SMALLEST = 0.001  # milliseconds; the first bucket has everything below
_LARGEST = 1e18
_WIDTH = float(np.log(1.02))
_TIMES = ("wait", "duration")


class OutcomeNames(NamedTuple):
    """The names of an outcome in counts of attempts, and in counts of messages."""

    attempts: str
    messages: str


OUTCOMES: Final[dict[Outcome, OutcomeNames]] = {
    "success": OutcomeNames("successes", "handled"),
    "retry": OutcomeNames("retries", "retried"),
    "dead-letter": OutcomeNames("dead_letters", "dead_lettered"),
    "discard": OutcomeNames("discards", "discarded"),
}
SENT: Final = ["sent", "replayed"]
ENDED: Final = [names.messages for names in OUTCOMES.values()]
ATTEMPTS: Final = ["count", *(names.attempts for names in OUTCOMES.values()), "ran"]
LARGEST: Final = ["wait_max", "duration_max"]
RATES: Final = {
    "success_rate": "successes",
    "retry_rate": "retries",
    "dead_letter_rate": "dead_letters",
}

_KEY_FIELDS = [
    pa.field("way", pa.string(), False),
    pa.field("event_key", pa.string(), False),
    pa.field("subscriber", pa.string(), False),
    pa.field("window_start", _INSTANT, False),
]
_LENGTH = pa.field("window_seconds", pa.int32(), False)
_BUCKETS = pa.map_(pa.int32(), pa.int64())


def _numbers(names: Iterable[str], kind: Any, *, null: bool = False) -> list[Any]:
    return [pa.field(name, kind, null) for name in names]


VOLUME: Final[Schema] = pa.schema([*_KEY_FIELDS, _LENGTH, *_numbers([*SENT, *ENDED], pa.int64())])
"""Messages sent, and how attempts ended, per event, subscriber and window."""

HEALTH: Final[Schema] = pa.schema(
    [
        *_KEY_FIELDS,
        _LENGTH,
        *_numbers(ATTEMPTS, pa.int64()),
        *_numbers(LARGEST, pa.float64(), null=True),
        *_numbers(RATES, pa.float64()),
        *_numbers((f"{w}_{q}" for w in _TIMES for q in QUANTILES), pa.float64(), null=True),
        *_numbers((f"{what}_histogram" for what in _TIMES), _BUCKETS),
    ]
)
"""Attempts, rates, and percentiles of waiting and running times in milliseconds."""

_SENT_COUNTS = pa.schema([*_KEY_FIELDS, *_numbers(SENT, pa.int64())])
_ATTEMPT_COUNTS = pa.schema(
    [
        *_KEY_FIELDS,
        *_numbers(ATTEMPTS, pa.int64()),
        *_numbers(LARGEST, pa.float64(), null=True),
    ]
)
_TIME_COUNTS = pa.schema(
    [
        *_KEY_FIELDS,
        pa.field("what", pa.int8(), False),
        pa.field("bucket", pa.int32(), False),
        pa.field("times", pa.int64(), False),
    ]
)


class Counts(msgspec.Struct, frozen=True):
    """Counts of sent messages and attempts, and the buckets of their times."""

    sent: Any
    attempts: Any
    times: Any

    def days(self) -> list[int]:
        """The days that have counts, as numbers since 1970."""
        every = [days_of(one) for one in (self.sent, self.attempts)]
        return np.unique(np.concatenate(every)).tolist()

    def of_days(self, days: Collection[int], *, inside: bool = True) -> Counts:
        """The counts of some days only, or of all others."""

        def chosen(rows: Table) -> Table:
            return rows.filter(pa.array(np.isin(days_of(rows), [*days]) == inside))

        return Counts(chosen(self.sent), chosen(self.attempts), chosen(self.times))

    def __add__(self, other: Counts) -> Counts:
        return add_up([self, other])


NOTHING: Final = Counts(
    _SENT_COUNTS.empty_table(), _ATTEMPT_COUNTS.empty_table(), _TIME_COUNTS.empty_table()
)


def add_up(counts: Sequence[Counts]) -> Counts:
    """Several counts as one."""
    if not counts:
        return NOTHING
    return Counts(
        _summed(pa.concat_tables([one.sent for one in counts]), _SENT_COUNTS, KEY),
        _summed(pa.concat_tables([one.attempts for one in counts]), _ATTEMPT_COUNTS, KEY),
        _summed(
            pa.concat_tables([one.times for one in counts]), _TIME_COUNTS, [*KEY, "what", "bucket"]
        ),
    )


def _summed(rows: Table, schema: Schema, keys: Sequence[str]) -> Table:
    sums = [
        (name, "max" if name in LARGEST else "sum") for name in schema.names if name not in keys
    ]
    found = rows.group_by(list(keys), use_threads=False).aggregate(sums)
    return (
        found.rename_columns([*keys, *(name for name, _ in sums)]).select(schema.names).cast(schema)
    )


# -- counting rows ------------------------------------------------------------------------------

EVENT_COLUMNS: Final = ["way", "event_key", "subscriber", "recorded_at", "replay_id"]
DELIVERY_COLUMNS: Final = [
    *("way", "event_key", "subscriber", "started_at", "outcome", "ran", "wait_ms", "duration_ms"),
]


def count_events(rows: Table, length: int = WINDOW) -> Counts:
    """Count rows of ``events``, of their ``EVENT_COLUMNS``."""
    counted = pa.table(
        {
            **{name: rows.column(name) for name in WHO},
            "window_start": in_windows(rows.column("recorded_at"), length),
            "sent": np.ones(rows.num_rows, np.int64),
            "replayed": rows.column("replay_id").is_valid().cast(pa.int64()),
        }
    )
    return Counts(_summed(counted, _SENT_COUNTS, KEY), NOTHING.attempts, NOTHING.times)


def count_deliveries(rows: Table, length: int = WINDOW) -> Counts:
    """Count rows of ``deliveries``, of their ``DELIVERY_COLUMNS``.

    The times of callbacks that did not run are left out.
    """
    outcome = rows.column("outcome")
    ran = rows.column("ran")
    duration = compute.if_else(ran, rows.column("duration_ms"), pa.scalar(None, pa.float64()))
    key = {
        **{name: rows.column(name) for name in WHO},
        "window_start": in_windows(rows.column("started_at"), length),
    }
    counted = pa.table(
        {
            **key,
            "count": np.ones(rows.num_rows, np.int64),
            **{
                names.attempts: compute.equal(outcome, name).cast(pa.int64())
                for name, names in OUTCOMES.items()
            },
            "ran": ran.cast(pa.int64()),
            "wait_max": rows.column("wait_ms"),
            "duration_max": duration,
        }
    )
    times = [
        pa.table({**key, "what": np.full(rows.num_rows, what, np.int8), "bucket": _buckets(values)})
        for what, values in enumerate((rows.column("wait_ms"), duration))
    ]
    each = pa.concat_tables(times).filter(compute.field("bucket").is_valid())
    each = each.append_column("times", pa.array(np.ones(each.num_rows, np.int64)))
    return Counts(
        NOTHING.sent,
        _summed(counted, _ATTEMPT_COUNTS, KEY),
        _summed(each, _TIME_COUNTS, [*KEY, "what", "bucket"]),
    )


def days_of(rows: Table) -> npt.NDArray[np.int64]:
    """The day of the window of each row, as a number since 1970."""
    return rows.column("window_start").cast(pa.int64()).to_numpy() // _DAY


def in_windows(times: Any, length: int) -> Any:
    """The start of the window of ``length`` seconds of each time."""
    micros = times.cast(pa.int64()).to_numpy()
    return pa.array(micros // (length * _MICROS) * (length * _MICROS), pa.int64()).cast(_INSTANT)


def _buckets(milliseconds: Any) -> Any:
    values = milliseconds.to_numpy()
    known = ~np.isnan(values)
    place = np.log(np.clip(np.where(known, values, 0), _SMALLEST, _LARGEST) / _SMALLEST) / _WIDTH
    return pa.array(place.astype(np.int32), mask=~known)


# -- stored rows --------------------------------------------------------------------------------


def from_health(rows: Table) -> Counts:
    """The counts in rows of ``health``."""
    rows = rows.combine_chunks()
    times: list[Table] = []
    for what, name in enumerate(_TIMES):
        column = rows.column(f"{name}_histogram").combine_chunks()
        lists = column.cast(pa.list_(pa.struct([("key", pa.int32()), ("value", pa.int64())])))
        parents = compute.list_parent_indices(lists)
        flat = lists.flatten()
        taken = rows.select(KEY).take(parents)
        more = pa.table(
            {
                "what": np.full(len(parents), what, np.int8),
                "bucket": compute.struct_field(flat, 0),
                "times": compute.struct_field(flat, 1),
            }
        )
        for field in more.column_names:
            taken = taken.append_column(field, more.column(field))
        times.append(taken.cast(_TIME_COUNTS))
    attempts = rows.select(_ATTEMPT_COUNTS.names).cast(_ATTEMPT_COUNTS)
    return Counts(NOTHING.sent, attempts, pa.concat_tables(times))


def to_volume(counts: Counts, length: int = WINDOW) -> Table:
    """Rows of ``volume``: what was sent, and how attempts ended."""
    sent = _with_nulls(_rewindowed(counts.sent, length), VOLUME)
    names = {one.attempts: one.messages for one in OUTCOMES.values()}
    ended = _rewindowed(counts.attempts, length).select([*KEY, *names])
    ended = _with_nulls(ended.rename_columns([*KEY, *names.values()]), VOLUME)
    rows = pa.concat_tables([sent, ended])
    return _finished_volume(rows, length)


def add_volume(rows: Sequence[Table], length: int = WINDOW) -> Table:
    """Rows of ``volume``, added up in windows of that length."""
    return _finished_volume(_rewindowed(pa.concat_tables(rows), length), length)


def _finished_volume(rows: Table, length: int) -> Table:
    names = [*SENT, *ENDED]
    found = rows.group_by(KEY, use_threads=False).aggregate([(name, "sum") for name in names])
    found = found.rename_columns([*KEY, *names])
    found = found.append_column(_LENGTH, pa.array(np.full(found.num_rows, length, np.int32)))
    return found.select(VOLUME.names).cast(VOLUME)


def to_health(counts: Counts, length: int = WINDOW, keys: Sequence[str] = KEY) -> Table:
    """Rows of ``health``, or of some of its keys only, with rates and percentiles."""
    counts = Counts(
        NOTHING.sent,
        _rewindowed(counts.attempts, length),
        _rewindowed(counts.times, length),
    )
    sums = [(name, "max" if name in LARGEST else "sum") for name in [*ATTEMPTS, *LARGEST]]
    rows = counts.attempts.group_by(list(keys), use_threads=False).aggregate(sums)
    rows = rows.rename_columns([*keys, *(name for name, _ in sums)])
    rows = rows.sort_by([(name, "ascending") for name in keys])
    for rate, name in RATES.items():
        share = compute.divide(rows.column(name).cast(pa.float64()), rows.column("count"))
        rows = rows.append_column(rate, share)
    histograms = [_histograms(counts.times, what, rows, keys) for what in range(len(_TIMES))]
    for name, histogram in zip(_TIMES, histograms, strict=True):
        for quantile, rank in QUANTILES.items():
            values = histogram.quantile(rank, rows.column(f"{name}_max"))
            rows = rows.append_column(f"{name}_{quantile}", values)
    for name, histogram in zip(_TIMES, histograms, strict=True):
        rows = rows.append_column(f"{name}_histogram", histogram.as_maps())
    rows = rows.append_column(_LENGTH, pa.array(np.full(rows.num_rows, length, np.int32)))
    schema = pa.schema([one for one in HEALTH if one.name not in set(KEY) - set(keys)])
    return rows.select(schema.names).cast(schema)


class _Histograms(NamedTuple):
    """The buckets of each row, one row after the other: those from ``ends[i-1]`` to ``ends[i]``."""

    buckets: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def quantile(self, rank: float, most: Any) -> Any:
        """The value that ``rank`` of the values of each row do not exceed."""
        before = np.concatenate([[0], np.cumsum(self.counts)])
        starts = np.concatenate([[0], self.ends[:-1]])
        first, last = before[starts], before[self.ends]
        known = last > first
        wanted = first + np.maximum(np.ceil(rank * (last - first)), 1)
        places = np.searchsorted(before[1:], np.minimum(wanted, last))
        places = np.minimum(places, max(len(self.buckets) - 1, 0))
        middle = (self.buckets[places] if len(self.buckets) else np.zeros(len(known))) + 0.5
        values = np.where(known, _SMALLEST * np.exp(middle * _WIDTH), 0.0)
        largest = most.fill_null(0.0).to_numpy()
        return pa.array(np.minimum(values, largest), mask=~known)

    def as_maps(self) -> Any:
        """A map of buckets to counts for each row."""
        offsets = np.concatenate([[0], self.ends]).astype(np.int32)
        return pa.MapArray.from_arrays(
            pa.array(offsets), pa.array(self.buckets), pa.array(self.counts)
        )


def _histograms(times: Table, what: int, rows: Table, keys: Sequence[str]) -> _Histograms:
    """The histograms of rows that are sorted by their keys."""
    numbered = rows.select(list(keys)).append_column("row", pa.array(np.arange(rows.num_rows)))
    chosen = times.filter(compute.field("what") == what)
    summed = chosen.group_by([*keys, "bucket"], use_threads=False).aggregate([("times", "sum")])
    joined = summed.join(numbered, list(keys), join_type="inner", use_threads=False)
    joined = joined.sort_by([("row", "ascending"), ("bucket", "ascending")])
    places: npt.NDArray[np.int64] = joined.column("row").to_numpy()
    every = np.arange(rows.num_rows, dtype=np.int64)
    ends: npt.NDArray[np.int64] = np.searchsorted(places, every, side="right")
    return _Histograms(
        joined.column("bucket").to_numpy(), joined.column("times_sum").to_numpy(), ends
    )


def _rewindowed(rows: Table, length: int) -> Table:
    if length == WINDOW and rows.num_rows == 0:
        return rows
    place = rows.schema.get_field_index("window_start")
    return rows.set_column(
        place, rows.schema.field(place), in_windows(rows.column("window_start"), length)
    )


def _with_nulls(rows: Table, schema: Schema) -> Table:
    """The columns of a schema; numbers that are missing are 0."""
    zeros = pa.array(np.zeros(rows.num_rows, np.int64))
    names = set(rows.column_names)
    return pa.table({one: rows.column(one) if one in names else zeros for one in schema.names})


def whole_window(window: Seconds) -> int:
    """The length of a window in seconds; ``ConfigurationError`` unless it is whole minutes."""
    length = seconds(window, "window", minimum=WINDOW)
    if length % WINDOW:
        raise ConfigurationError(
            f"window={window!r} is not a whole number of minutes; use a multiple of {WINDOW} s"
        )
    return int(length)
