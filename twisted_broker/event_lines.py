"""Lines that say what happened, in a form that `grep` and programs find: `kind key=value ..`.

Owns the form, and the bound in a storm.

1. A line is one line: a value with blanks or anything that is not printable is quoted, a long one
   is shortened.
2. Of one kind at most `MOST_LINES` a minute are written. The rest is counted, and one line says how
   many there were when the minute is over, or at the stop.
3. Kinds are the program's own few words, so what is counted is bounded.

Ring 1. Source: our own. Not here: what is worth a line (`cluster/metadata_events.py` and the parts
of the broker), where lines go, and which levels do (`log_output.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from constantly import NamedConstant
from twisted.logger import Logger, LogLevel

from twisted_broker.interfaces import IClock, IDelayedCall, TopicPartition

MOST_LINES = 20
_MINUTE = 60.0
_LONGEST = 300
NAMED = 3


class EventLines:
    """The lines of one part of the broker: `add(kind, key=value)`; `_` in a key is written as a
    dot. `said`: parts that all of its lines begin with, such as the broker's id.
    """

    __slots__ = ("_began", "_clock", "_counts", "_logger", "_said", "_timer")

    def __init__(self, logger: Logger, clock: IClock, **said: object) -> None:
        self._logger, self._clock, self._said = logger, clock, said
        self._counts: dict[tuple[NamedConstant, str], int] = {}
        self._began = clock.seconds()
        self._timer: IDelayedCall | None = None

    def add(self, kind: str, **parts: object) -> None:
        """One line at info, or its place in the count."""
        self._add(LogLevel.info, kind, parts)

    def warn(self, kind: str, **parts: object) -> None:
        """As `add`, for what an operator should look at."""
        self._add(LogLevel.warn, kind, parts)

    def error(self, kind: str, **parts: object) -> None:
        """As `add`, for what an operator must act on."""
        self._add(LogLevel.error, kind, parts)

    def _add(self, level: NamedConstant, kind: str, parts: dict[str, object]) -> None:
        now = self._clock.seconds()
        if self._timer is None and now - self._began >= _MINUTE:
            self._counts.clear()
            self._began = now
        count = self._counts[level, kind] = self._counts.get((level, kind), 0) + 1
        if count <= MOST_LINES:
            self._write(level, kind, parts)
        elif self._timer is None:
            left = max(0.0, self._began + _MINUTE - now)
            self._timer = self._clock.callLater(left, self._minute_is_over)

    def _write(self, level: NamedConstant, kind: str, parts: dict[str, object]) -> None:
        values: dict[str, Any] = {
            name: value_text(value) for name, value in {**self._said, **parts}.items()
        }
        form = " ".join(f"{name.replace('_', '.')}={{{name}}}" for name in values)
        self._logger.emit(level, f"{kind} {form}", **values)

    def _minute_is_over(self) -> None:
        self._timer, self._began = None, self._clock.seconds()
        counts, self._counts = self._counts, {}
        for (level, kind), count in counts.items():
            if count > MOST_LINES:
                more = {"count": count - MOST_LINES}
                self._write(level, f"{kind}, more in that minute:", dict(more))

    def stop(self) -> None:
        """What was counted is written; nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._minute_is_over()


def value_text(value: object) -> str | int | float | bool:
    """A value as it stands behind the `=`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple | list) and not isinstance(value, TopicPartition):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}.."
    if not text or not text.isprintable() or any(sign in text for sign in ' "='):
        return json.dumps(text)
    return text


def some(names: Sequence[object] | Iterable[object]) -> str:
    """The first few of many names, and how many more there are."""
    found = list(names)
    rest = len(found) - NAMED
    return ",".join(map(str, found[:NAMED])) + (f",+{rest}" if rest > 0 else "")
