"""Filters on topic, partition and offset, as Spark pushes them down: which of them the source
answers by itself, and what they leave to be read.

1. A filter that is kept is not applied again by Spark: only those are kept that `Pruning` answers
   exactly.
2. Topic and partition are constant in a file, the offset has a range; none of them is ever null.
3. Several filters are one conjunction.

Source: Spark's DataSourceReader.pushFilters. Not here: files (`plan`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

OFFSET: Final = "offset"
_NEVER_NULL: Final = ("topic", "partition", OFFSET)
MAX_OFFSET: Final = 2**63 - 1

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
_OTHERS: Final = {"In": lambda found, values: found in values}


class Pruning:
    """Tests on topic and partition, and offsets `start` to `end` (exclusive)."""

    def __init__(self) -> None:
        self.tests: list[tuple[str, str, Any]] = []
        self.start, self.end = 0, MAX_OFFSET

    def admits(self, topic: str, partition: int) -> bool:
        values = {"topic": topic, "partition": partition}
        return all(
            (_COMPARISONS | _OTHERS)[kind](values[column], wanted)
            for column, kind, wanted in self.tests
        )

    def push(self, filters: Iterable[Filter], exact_offsets: bool = True) -> Iterator[Filter]:
        """Take in what can be taken; those that Spark must still apply.

        `exact_offsets`: rows outside the range never come.
        """
        for each in filters:
            column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None  # type: ignore[attr-defined]
            if (
                column not in _NEVER_NULL
                or not self._take(str(column), each)
                or (column == OFFSET and not exact_offsets)
            ):
                yield each

    def _take(self, column: str, each: Filter) -> bool:
        """Whether the filter is answered from now on.

        One that compares with null is left to Spark.
        """
        kind, value = type(each).__name__, getattr(each, "value", None)
        if kind == "IsNotNull":
            return True
        nullable = value is None or (kind == "In" and None in value)
        if nullable or kind not in (_COMPARISONS if column == OFFSET else _COMPARISONS | _OTHERS):
            return False
        if column == OFFSET:
            self._cut(kind, value)
        else:
            self.tests.append((column, kind, value))
        return True

    def _cut(self, kind: str, value: Any) -> None:
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual"):
            self.start = max(self.start, value)
        if kind == "GreaterThan":
            self.start = max(self.start, value + 1)
        if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual"):
            self.end = min(self.end, value + 1)
        if kind == "LessThan":
            self.end = min(self.end, value)
