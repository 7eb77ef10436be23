"""Prometheus' text format, made in pieces. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Exposition`: what one scrape has gathered so far.

1. All lines of a metric stand together, behind its help and type, whenever they were gathered.
2. A value of a label is quoted: nothing that a client chose becomes a line of its own.
3. A family without a line is left out.

prometheus-client writes a registry in one go: a hundred thousand lines would hold the reactor for a
second. Source: Prometheus' exposition formats, text 0.0.4. Not here: HTTP
(`status/metrics_resource.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import isnan

from twisted_broker.status.metric_names import Kind, MBean, names

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_TYPES = {Kind.METER: "counter", Kind.TOTAL: "counter", Kind.HISTOGRAM: "summary"}
Rows = Iterable[tuple[Sequence[object], float]]
names_of = cache(names)


def labels_text(labels: Sequence[str], values: Sequence[object]) -> str:
    """`{name="value",..}`, or nothing."""
    if not labels:
        return ""
    pairs = zip(labels, values, strict=True)
    return (
        "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in pairs) + "}"
    )


def number_text(value: float) -> str:
    """As Prometheus reads it."""
    if isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value) if isinstance(value, bool) else value)


class Family:
    """One metric: `lines` end with a line feed each, or are several such."""

    __slots__ = ("doc", "kind", "lines", "name")

    def __init__(self, name: str, kind: str, doc: str) -> None:
        self.name, self.kind, self.doc = name, kind, doc
        self.lines: list[str] = []

    def add(self, labels: str, value: float, suffix: str = "") -> None:
        """`labels`: as of `labels_text`."""
        self.lines.append(f"{self.name}{suffix}{labels} {number_text(value)}\n")


class Exposition:
    """The families by name, in the order in which they came first."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def family(self, name: str, kind: str, doc: str) -> Family:
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = Family(name, kind, doc)
        return found

    def add(self, name: str, kind: str, doc: str, labels: Sequence[str], rows: Rows) -> None:
        """A metric that is not of an MBean."""
        family = self.family(name, kind, doc)
        for values, number in rows:
            family.add(labels_text(labels, values), number)

    def bean(self, bean: MBean, doc: str, rows: Rows, keys: Sequence[str] | None = None) -> None:
        """An MBean under all of its names; a row has a value for each of its keys, or of `keys`,
        where it is a total over the others.
        """
        rows = list(rows)
        for family, labels, sources in self.of(bean, doc, keys):
            for values, number in rows:
                family.add(labels_text(labels, [values[at] for at in sources]), number)

    def of(
        self, bean: MBean, doc: str, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[Family, tuple[str, ...], tuple[int, ...]]]:
        """Its families, each with its labels, and which key each label has its value from."""
        kind = _TYPES.get(bean.kind, "gauge")
        for name, labels, sources in names_of(bean):
            if keys is not None:
                found = [at for at, key in enumerate(sources) if bean.keys[key] in keys]
                labels = tuple(labels[at] for at in found)
                sources = tuple(keys.index(bean.keys[sources[at]]) for at in found)
            # A counter's name ends so: readers of the newer format would add the end themselves.
            of_name = kind if kind != "counter" or name.endswith("_total") else "untyped"
            yield self.family(name, of_name, doc), labels, sources

    def text(self, piece_bytes: int = 1 << 16) -> Iterator[bytes]:
        """All of it, in pieces of about that size."""
        lines: list[str] = []
        size = 0
        for family in self._families.values():
            if not family.lines:
                continue
            lines.append(f"# HELP {family.name} {family.doc}\n# TYPE {family.name} {family.kind}\n")
            for line in family.lines:
                lines.append(line)
                size += len(line)
                if size >= piece_bytes:
                    yield "".join(lines).encode()
                    lines, size = [], 0
        yield "".join(lines).encode()
