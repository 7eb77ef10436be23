"""Lines that say what happened, in a form that `grep` and programs find: `kind key=value ..`.

Owns the form, and the bound in a storm.

1. A line is one line: a value with blanks or anything that is not printable is quoted, a long one
   is shortened.
2. Of one kind at most `MOST_LINES` (or `most`) a minute are written. The rest is counted, and one
   line says how many there were when the minute is over, or at the stop.
3. Kinds are the program's own few words, so what is counted is bounded.
4. Where lines are counted `by` parts of theirs, each value has a budget of its own: one client does
   not hide another. There are `MOST_BUDGETS` for a kind, of which one value of the first part has
   at most `MOST_OF_ONE`; what is beyond shares one. The lines that count the rest name whose it is.

Ring 1. Source: our own. Not here: what is worth a line (`cluster/metadata_events.py` and the parts
of the broker), where lines go, and which levels do (`log_output.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from constantly import NamedConstant
from twisted.logger import Logger, LogLevel

from twisted_broker.interfaces import IClock, IDelayedCall, TopicPartition

MOST_LINES = 20
MOST_BUDGETS, MOST_OF_ONE = 128, 16
_MOST_COUNTED = 20
"""Lines of one kind that count the rest of a minute, besides a last one."""
_OTHERS = "others"
_MINUTE = 60.0
_LONGEST = 300
NAMED = 3


_Budget = tuple[str | int | float | bool, ...]
"""Values of the parts that lines are counted by."""


class EventLines:
    """The lines of one part of the broker: `add(kind, key=value)`; `_` in a key is written as a
    dot. `said`: parts that all of its lines begin with, such as the broker's id. `by`: the names of
    parts whose values have a budget each, of `most` lines a minute.
    """

    __slots__ = ("_began", "_by", "_clock", "_counts", "_logger", "_most", "_said", "_timer")

    def __init__(
        self,
        logger: Logger,
        clock: IClock,
        by: tuple[str, ...] = (),
        most: int = MOST_LINES,
        **said: object,
    ) -> None:
        self._logger, self._clock, self._said = logger, clock, said
        self._by, self._most = by, most
        self._counts: dict[tuple[NamedConstant, str], dict[_Budget, int]] = {}
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
        counts = self._counts.setdefault((level, kind), {})
        budget = self._budget(counts, parts)
        count = counts[budget] = counts.get(budget, 0) + 1
        if count <= self._most:
            self._write(level, kind, parts)
        elif self._timer is None:
            left = max(0.0, self._began + _MINUTE - now)
            self._timer = self._clock.callLater(left, self._minute_is_over)

    def _budget(self, counts: dict[_Budget, int], parts: dict[str, object]) -> _Budget:
        budget = tuple([value_text(parts.get(name, "")) for name in self._by])
        if not budget or budget in counts:
            return budget
        if len(budget) > 1 and sum(each[0] == budget[0] for each in counts) >= MOST_OF_ONE - 1:
            budget = (budget[0], *[_OTHERS] * (len(budget) - 1))
        if budget not in counts and len(counts) >= MOST_BUDGETS - 1:
            budget = (_OTHERS,) * len(budget)
        return budget

    def _write(
        self,
        level: NamedConstant,
        kind: str,
        parts: dict[str, object],
        by: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`by`: parts that are texts already, which come before the others."""
        said: dict[str, Any] = {name: value_text(value) for name, value in self._said.items()}
        values = {**said, **by, **{name: value_text(value) for name, value in parts.items()}}
        form = " ".join(f"{name.replace('_', '.')}={{{name}}}" for name in values)
        self._logger.emit(level, f"{kind} {form}", **values)

    def _minute_is_over(self) -> None:
        self._timer, self._began = None, self._clock.seconds()
        counts, self._counts = self._counts, {}
        for (level, kind), found in counts.items():
            more = [(count - self._most, each) for each, count in found.items()]
            more = sorted((each for each in more if each[0] > 0), key=lambda each: -each[0])
            kind = f"{kind}, more in that minute:"
            for count, budget in more[:_MOST_COUNTED]:
                # Its values are texts of lines already.
                values = dict(zip(self._by, budget, strict=True))
                self._write(level, kind, {"count": count}, values)
            if rest := more[_MOST_COUNTED:]:
                count = sum(each[0] for each in rest)
                self._write(level, kind, {"count": count, "others": len(rest)})

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
