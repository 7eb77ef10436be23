"""The anomalies that a history must not show: Jepsen's, of a log, under Jepsen's names.

Owns `find_anomalies`. Each partition's order of values is rebuilt from every (offset, value) that
any client was answered; gaps between offsets are fine, so skips are counted in that order and not
in offsets.

| name | an anomaly is |
|---|---|
| inconsistent-offsets | one offset with two values |
| duplicate | one value at two offsets |
| lost-write | an acknowledged value that nobody polled, though somebody polled that far |
| unseen | an acknowledged value that nobody polled by the end |
| aborted-read | a refused value that somebody polled (Jepsen's G1a) |
| unsent-read | a polled value that nobody sent |
| poll-skip, nonmonotonic-poll | between two polls of a consumer, values are skipped or repeated |
| int-poll-skip, int-nonmonotonic-poll | the same within one poll |
| nonmonotonic-send, int-nonmonotonic-send | a producer's later send below an earlier one |
| group-skip | no member of a group polled an acknowledged value, yet one polled beyond |

Of transactions, where all consumers are read_committed (`_transactions`, `_copies`):

| name | an anomaly is |
|---|---|
| precommitted-read | a value, or a copy of it, was polled before the commit of it was sent |
| torn-transaction | by the end some values of a transaction were polled, others by nobody |
| lost-write | a program that reads and writes did not pass on, by the end, what was polled |
| duplicate | it passed a value on twice |

Near linear in the number of facts. Source: RELIABILITY 1.2; `jepsen.tests.kafka`. Not here:
int-send-skip, G0, G1c; and gaps between tenures, which are a group's right (group-skip looks at
what they must not do).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.history import Fate, History, Record, Send, source_of

NAMES = (
    "inconsistent-offsets",
    "duplicate",
    "lost-write",
    "unseen",
    "aborted-read",
    "unsent-read",
    "poll-skip",
    "nonmonotonic-poll",
    "int-poll-skip",
    "int-nonmonotonic-poll",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "group-skip",
    "precommitted-read",
    "torn-transaction",
)


class Anomaly(NamedTuple):
    """One of `NAMES`, where, and what was seen; `value`: of a duplicate, at `offsets` in order."""

    name: str
    partition: TopicPartition
    what: str
    value: str = ""
    offsets: Sequence[int] = ()

    def __str__(self) -> str:
        return f"{self.name} in {self.partition}: {self.what}"


def find_anomalies(history: History, ended: bool = True) -> list[Anomaly]:
    """All of them, by partition.

    `ended`: everything was read to the end, so what was not seen is an anomaly.
    """
    partitions: dict[TopicPartition, _Partition] = {}
    for send in history.sends:
        partitions.setdefault(send.partition, _Partition(send.partition)).sends.append(send)
    for poll in history.polls:
        for partition, records in poll.records.items():
            reading = (poll.who, history.groups.get(poll.who, ""), poll.tenure, records)
            partitions.setdefault(partition, _Partition(partition)).readings.append(reading)
    found = [anomaly for _, each in sorted(partitions.items()) for anomaly in each.anomalies(ended)]
    if history.transactions:
        polled = _first_polls(history)
        found += [*_transactions(history, _shown(polled), ended), *_copies(history, polled, ended)]
    return found


def counts(anomalies: Sequence[Anomaly]) -> dict[str, int]:
    """How many of each name, zeros too."""
    found = Counter(each.name for each in anomalies)
    return {name: found[name] for name in NAMES}


def _first_polls(history: History) -> dict[str, tuple[int, TopicPartition]]:
    """Value -> when it was first polled, and where."""
    found: dict[str, tuple[int, TopicPartition]] = {}
    for poll in history.polls:
        for partition, records in poll.records.items():
            for _, value in records:
                before = found.get(value)
                if before is None or poll.at < before[0]:
                    found[value] = poll.at, partition
    return found


def _shown(
    polled: dict[str, tuple[int, TopicPartition]],
) -> dict[str, tuple[int, TopicPartition]]:
    """`polled`, and what programs must have read: the value of which a copy was polled."""
    found = dict(polled)
    for value, first in polled.items():
        source = source_of(value)
        if source and (source not in found or first[0] < found[source][0]):
            found[source] = first
    return found


def _transactions(
    history: History, polled: dict[str, tuple[int, TopicPartition]], ended: bool
) -> Iterator[Anomaly]:
    for each in history.transactions.values():
        missing = None
        shown = None
        for send in each.sends:
            first = polled.get(send.value)
            if first is None:
                missing = send
                continue
            shown = send
            if not each.committing or first[0] < each.committing:
                what = f"{send.value!r} was polled of {each!r}"
                yield Anomaly("precommitted-read", send.partition, what)
        if ended and missing is not None and shown is not None:
            what = f"{shown.value!r} was polled, {missing.value!r} was not, of {each!r}"
            yield Anomaly("torn-transaction", missing.partition, what)


def _copies(
    history: History, polled: dict[str, tuple[int, TopicPartition]], ended: bool
) -> Iterator[Anomaly]:
    """Each group of programs passes each value on once; what it was not answered counts when it
    was polled.
    """
    copies: dict[str, dict[str, list[str]]] = {}
    sources: set[str] = set()
    for transaction in history.transactions.values():
        for send in transaction.sends:
            source = source_of(send.value)
            if source:
                by_source = copies.setdefault(history.groups.get(send.who, send.who), {})
                if send.value in polled:
                    by_source.setdefault(source, []).append(send.value)
                sources.add(source)
    read = {send.partition.topic for send in history.sends if send.value in sources}
    for group, by_source in copies.items():
        for source, values in by_source.items():
            if len(values) > 1:
                what = f"{source!r} was passed on by {group} as {values}"
                yield Anomaly("duplicate", polled[values[0]][1], what, source)
        for value, (_, partition) in polled.items():
            if ended and partition.topic in read and value not in by_source:
                yield Anomaly("lost-write", partition, f"{value!r} was not passed on by {group}")


class _Partition:
    """One partition's facts, and what is wrong with them."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.sends: list[Send] = []
        self.readings: list[tuple[str, str, int, Sequence[Record]]] = []
        """(consumer, its group or "", tenure, records) per poll"""
        self.values: dict[int, list[str]] = {}
        self.offsets: dict[str, list[int]] = {}
        self.polled: set[str] = set()
        self.ranks: dict[int, int] = {}

    def anomalies(self, ended: bool) -> Iterator[Anomaly]:
        self._rebuild()
        for value, offsets in self.offsets.items():
            if len(offsets) > 1:
                places = sorted(offsets)
                what = f"{value!r} is at offsets {places}"
                yield Anomaly("duplicate", self.name, what, value, places)
        for check in (
            self._places(),
            self._writes(ended),
            self._reads(),
            self._polls(),
            self._send_order(),
            self._groups(),
        ):
            for name, what in check:
                yield Anomaly(name, self.name, what)

    def _rebuild(self) -> None:
        """The order of values, from all answers."""
        for send in self.sends:
            if send.fate is Fate.ACKED and send.offset >= 0:
                self._note_kept(send.offset, send.value)
        for _, _, _, records in self.readings:
            for offset, value in records:
                self.polled.add(value)
                self._note_kept(offset, value)
        self.ranks = {offset: rank for rank, offset in enumerate(sorted(self.values))}

    def _note_kept(self, offset: int, value: str) -> None:
        values = self.values.setdefault(offset, [])
        if value not in values:
            values.append(value)
        offsets = self.offsets.setdefault(value, [])
        if offset not in offsets:
            offsets.append(offset)

    def _places(self) -> Iterator[tuple[str, str]]:
        for offset, values in self.values.items():
            if len(values) > 1:
                yield "inconsistent-offsets", f"offset {offset} holds {values}"

    def _writes(self, ended: bool) -> Iterator[tuple[str, str]]:
        highest = max(
            (offset for _, _, _, records in self.readings for offset, _ in records), default=-1
        )
        for send in self.sends:
            if send.fate is not Fate.ACKED or send.value in self.polled:
                continue
            if 0 <= send.offset <= highest:
                yield "lost-write", f"{send!r}, was polled by nobody, who polled up to {highest}"
            elif ended:
                yield "unseen", f"{send!r}, was polled by nobody, up to {highest}"

    def _reads(self) -> Iterator[tuple[str, str]]:
        fates = {send.value: send.fate for send in self.sends}
        for value in sorted(self.polled):
            if value not in fates:
                yield "unsent-read", f"{value!r} at {self.offsets[value]} was sent by nobody"
            elif fates[value] is Fate.REFUSED:
                yield "aborted-read", f"{value!r} at {self.offsets[value]} was refused"

    def _polls(self) -> Iterator[tuple[str, str]]:
        """Each consumer walks the order value by value."""
        last: dict[str, tuple[int, int]] = {}
        for who, _, tenure, records in self.readings:
            before, prefix = last.get(who), ""
            for offset, _ in records:
                if before is not None and before[0] == tenure:
                    yield from self._step(who, before[1], offset, prefix)
                before, prefix = (tenure, offset), "int-"
            if before is not None:
                last[who] = before

    def _step(self, who: str, before: int, offset: int, prefix: str) -> Iterator[tuple[str, str]]:
        passed = self.ranks[offset] - self.ranks[before] - 1
        if passed > 0:
            yield (
                f"{prefix}poll-skip",
                f"{who} was given {offset} after {before}: {passed} between them were passed over",
            )
        elif passed < 0:
            yield f"{prefix}nonmonotonic-poll", f"{who} was given {offset} after {before}"

    def _send_order(self) -> Iterator[tuple[str, str]]:
        last: dict[str, Send] = {}
        for send in self.sends:
            if send.fate is not Fate.ACKED or send.offset < 0:
                continue
            before = last.get(send.who)
            if before is not None and send.offset <= before.offset:
                name = "int-nonmonotonic-send" if before.op == send.op else "nonmonotonic-send"
                yield name, f"{send!r}, was sent after {before!r}"
            if before is None or send.offset > before.offset:
                last[send.who] = send

    def _groups(self) -> Iterator[tuple[str, str]]:
        for group in sorted({group for _, group, _, _ in self.readings if group}):
            seen = {
                offset
                for _, member, _, records in self.readings
                if member == group
                for offset, _ in records
            }
            highest = max(seen, default=-1)
            for send in self.sends:
                if (
                    send.fate is Fate.ACKED
                    and 0 <= send.offset < highest
                    and send.offset not in seen
                ):
                    yield (
                        "group-skip",
                        f"{send!r}, was passed over by {group}, which read up to {highest}",
                    )
