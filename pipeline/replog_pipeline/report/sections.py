"""The sections of the report: from counted rows to plots and tables, one function per question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from replog_pipeline.report import bins, svg
from replog_pipeline.report.numbers import (
    count_text,
    key_text,
    minute_text,
    share_text,
    size_text,
)
from replog_pipeline.report.page import Section
from replog_pipeline.report.svg import Bar, Series
from replog_pipeline.report.tables import Table

Row = Mapping[str, Any]
BINS = 400
LINES = 5
TOP_BARS = 10
PARTITION_BARS = 40


def traffic(minutes: Table, unit: int = 1) -> Section:
    """Records and bytes over time.

    `minutes`: topic, time, minute, records, bytes; a row is of `unit` minutes.
    """
    dated = [row for row in minutes.rows if row[2] is not None]
    if not dated:
        return Section("Traffic", "No record has a timestamp.")
    width = bins.width(min(row[2] for row in dated), max(row[2] for row in dated), BINS, unit)
    first, last = min(row[2] for row in dated) // width, max(row[2] for row in dated) // width
    form = (
        "%Y-%m-%d" if width >= 1440 else "%m-%d %H:%M" if (last - first) * width > 1440 else "%H:%M"
    )
    places = [minute_text(at * width, form) for at in range(first, last + 1)]
    plots = []
    for title, column, text in (
        ("Records", 3, count_text),
        ("Bytes of keys and values", 4, size_text),
    ):
        series = binned(dated, column, width, first, last)
        plots.append(
            f"<h3>{title} {bin_text(width)}</h3>"
            + svg.lines(places, series, text)
            + (svg.legend([s.name for s in series]))
        )
    return Section(
        "Traffic",
        f"By the records' own timestamps, in UTC. The file counts {bin_text(unit)}.",
        plots,
        minutes,
        folded=True,
    )


def bin_text(width: int) -> str:
    if width == 1:
        return "per minute"
    for unit, minutes in (("day", 1440), ("hour", 60)):
        if width % minutes == 0:
            return f"per {unit}" if width == minutes else f"per {width // minutes} {unit}s"
    return f"per {width} minutes"


def binned(
    rows: Sequence[Sequence[Any]], column: int, width: int, first: int, last: int
) -> list[Series]:
    """The topics with the most, and all others together."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        sums.setdefault(row[0], [0.0] * (last - first + 1))[row[2] // width - first] += row[column]
    ranked = sorted(sums, key=lambda topic: (topic == bins.OTHERS, -sum(sums[topic])))
    shown = ranked if len(ranked) <= LINES else ranked[: LINES - 1]
    others = [sums[topic] for topic in ranked[len(shown) :]]
    name = "other topics" if bins.OTHERS in sums else f"{len(others)} other topics"
    rest = [Series(name, [sum(values) for values in zip(*others, strict=True)])] if others else []
    return [*(Series(topic, sums[topic]) for topic in shown), *rest]


def partitions(table: Table) -> Section:
    """`table`: topic, partition, records, bytes, first_offset, last_offset."""
    largest = sorted(table.rows, key=lambda row: -row[2])[:PARTITION_BARS]
    rows = [
        Bar(f"{row[0]}-{row[1]}", [row[2]], f"{count_text(row[2])}, {size_text(row[3])}")
        for row in sorted(largest)
    ]
    uneven = [f"{topic} {skew:.2f}" for topic, skew in skews(table).items()]
    note = "Records per partition. " + (
        f"The fullest partition against the mean: {', '.join(uneven)} (1 is even)."
        if uneven
        else ""
    )
    return Section("Partitions", note, [svg.bars(rows)], table, folded=True)


def skews(table: Table) -> dict[str, float]:
    """topic -> records of its fullest partition against the mean, for topics of several
    partitions.
    """
    counts: dict[str, list[int]] = {}
    for row in table.rows:
        counts.setdefault(row[0], []).append(row[2])
    return {
        topic: max(each) * len(each) / total
        for topic, each in counts.items()
        if len(each) > 1 and (total := sum(each))
    }


def batches(sizes: Sequence[Row]) -> Section:
    """`sizes`: rows of `batch_sizes.SIZES`."""
    if not sizes:
        return Section(
            "Batches", "Batches are seen in log directories only: --from segments:DIRECTORY."
        )
    count, records, stored = (
        sum(row[name] for row in sizes) for name in ("batches", "records", "stored")
    )
    span = range(min(row["bucket"] for row in sizes), max(row["bucket"] for row in sizes) + 1)
    values = [sum(row["batches"] for row in sizes if row["bucket"] == bucket) for bucket in span]
    note = (
        f"{count:,} batches, on average {records / count:,.1f} records and "
        f"{size_text(stored / count)}. Each small batch costs a request and "
        "a header of 61 bytes: linger.ms and batch.size of the producers decide."
    )
    names = [binary_text(2**bucket) for bucket in span]
    return Section(
        "Batch sizes", note, [f"<h3>Batches by size, from … on</h3>{svg.columns(names, values)}"]
    )


def binary_text(size: int) -> str:
    """Powers of two: 16384 -> "16 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"


def codec_table(sizes: Sequence[Row]) -> Table:
    """topic, codec, batches, records, stored and inflated bytes, ratio."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in sizes:
        total = sums.setdefault((row["topic"], row["codec"]), [0, 0, 0, 0])
        for at, name in enumerate(("batches", "records", "stored", "inflated")):
            total[at] += row[name]
    rows = [
        (*key, *total, total[3] / total[2] if total[2] else 1.0)
        for key, total in sorted(sums.items())
    ]
    return Table(
        "codecs",
        ("topic", "codec", "batches", "records", "stored_bytes", "uncompressed_bytes", "ratio"),
        rows,
    )


def compression(table: Table) -> Section:
    """`table` as `codec_table` makes it."""
    rows = [
        Bar(f"{row[0]} {row[1]}", [row[6]], f"{row[6]:.2f} : 1, {size_text(row[4])} stored")
        for row in table.rows
    ]
    return Section(
        "Compression",
        "Bytes of records before compression for each byte stored.",
        [svg.bars(rows)],
        table,
        folded=True,
    )


def keys(table: Table, totals: Table) -> Section:
    """`table`: topic, rank, key, records, bytes; `totals` as for `compaction`."""
    records = {
        topic: sum(row[2] for row in totals.rows if row[0] == topic)
        for topic in {row[0] for row in totals.rows}
    }
    if not table.rows:
        return Section("Keys", "No record has a key.")
    plots = []
    for topic in sorted({row[0] for row in table.rows}, key=lambda topic: -records[topic])[:LINES]:
        top = [row for row in table.rows if row[0] == topic][:TOP_BARS]
        rows = [
            Bar(
                key_text(row[2]),
                [row[3]],
                f"{share_text(row[3], records[topic])}, {count_text(row[3])}",
            )
            for row in top
        ]
        plots.append(f"<h3>{escape(topic)}</h3>{svg.bars(rows)}")
    note = (
        "The keys with the most records, and their share of the topic's. One partition, so "
        "one consumer of a group, gets all records of a key."
    )
    return Section("Key skew", note, plots, table, folded=True)


def compaction(table: Table) -> Section:
    """`table`: topic, partition, records, bytes, keys, without_key, live, live_bytes, deleted."""
    sums: dict[str, list[int]] = {}
    for row in table.rows:
        total = sums.setdefault(row[0], [0, 0])
        total[0] += row[3]
        total[1] += row[7]
    rows = [
        Bar(topic, [live, has - live], f"{share_text(has - live, has)} of {size_text(has)} go")
        for topic, (has, live) in sorted(sums.items())
    ]
    names = ("the last record of each key", "older records and deleted keys")
    note = (
        "What cleanup.policy=compact would take away: records whose key has a newer one. "
        "Records without a key stay (compacted topics take none)."
    )
    return Section(
        "Compaction", note, [svg.bars(rows, names), svg.legend(names)], table, folded=True
    )


def lag(table: Table | None, why: str = "") -> Section:
    """`table`: group, topic, partition, committed, end, lag, written."""
    if table is None or not table.rows:
        return Section("Consumer lag", why or "No group has committed offsets of these topics.")
    sums: dict[tuple[str, str], int] = {}
    for row in table.rows:
        sums[row[0], row[1]] = sums.get((row[0], row[1]), 0) + row[5]
    most = sorted(sums.items(), key=lambda item: -item[1])[:PARTITION_BARS]
    rows = [
        Bar(f"{group} · {topic}", [behind], f"{count_text(behind)} records")
        for (group, topic), behind in most
    ]
    note = (
        "End of the log minus the committed offset, summed over partitions; from the "
        "records of __consumer_offsets."
    )
    return Section("Consumer lag", note, [svg.bars(rows, room=260)], table)
