"""A mirror's numbers, for people and for Prometheus.

Owns `metrics_text`, `summary` and `rows`.

1. What is not known yet is left out of the metrics.
2. A line for people names the partitions that are furthest behind, `_SHOWN` at most.

Pure. Not here: HTTP and the terminal (`cli/mirror.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted_broker.mirror.mirror import Progress
from twisted_broker.status.metric_text import Exposition

_LABELS = ("topic", "partition")
_SHOWN = 10
_GAUGES: tuple[tuple[str, str, Callable[[Progress], int | None]], ...] = (
    ("log_start_offset", "The target's log start.", lambda each: each.log_start),
    ("log_end_offset", "The target's log end.", lambda each: each.log_end),
    ("source_end_offset", "The source's high watermark.", lambda each: each.source_end),
    ("lag", "Offsets that the source has and the target has not.", lambda each: each.lag),
)


def metrics_text(progress: Sequence[Progress]) -> bytes:
    """In Prometheus' text format."""
    made = Exposition()
    for name, doc, value in _GAUGES:
        made.add(
            f"replog_mirror_{name}",
            "gauge",
            doc,
            _LABELS,
            [
                (each.name, number)
                for each in progress
                if (number := value(each)) is not None and number >= 0
            ],
        )
    made.add(
        "replog_mirror_bytes_total",
        "counter",
        "Bytes of batches that this run brought.",
        _LABELS,
        [(each.name, each.bytes) for each in progress],
    )
    return b"".join(made.text())


def summary(progress: Sequence[Progress]) -> str:
    """One line."""
    known = [each.lag for each in progress if each.lag is not None]
    total = sum(each.bytes for each in progress)
    behind = sum(1 for lag in known if lag)
    several = "" if len(progress) == 1 else "s"
    return (
        f"{len(progress)} partition{several}, {behind} behind by {sum(known)} records, "
        f"{len(progress) - len(known)} not known yet, {total / 1e6:,.1f} MB mirrored"
    )


def rows(progress: Sequence[Progress]) -> list[tuple[str, str, str, str]]:
    """(partition, mirrored up to, source's end, lag), the largest lag first."""
    last = sorted(progress, key=lambda each: (1 if each.lag is None else -each.lag, each.name))
    return [
        (
            str(each.name),
            "" if each.log_end < 0 else str(each.log_end),
            "" if each.source_end < 0 else str(each.source_end),
            "" if each.lag is None else str(each.lag),
        )
        for each in last[:_SHOWN]
    ]
