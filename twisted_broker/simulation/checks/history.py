"""The requests of clients and their answers: the facts in which `anomalies` looks for violations.

Owns `History` with its `Send`s, `Poll`s and `Transaction`s, and `Recorder`, with which a client in
a process of its own writes its part of one to a file.

1. A value is sent once in a run. A send is acknowledged at an offset (-1: it is not known which),
   refused (surely not written), or unknown.
2. `op` numbers the calls of one client: the sends of one op go out together, in the order
   of invocation.
3. A poll is what one call gave, per partition in the order given. `tenure` grows whenever the
   consumer was given, or chose, a position.
4. A line of a file is whole or not there: a client that is killed leaves what it knew.
5. A transaction is one op. Its sends are acknowledged when its commit is, refused when it was
   aborted and no commit of it was ever sent. `source_of` a value is the value that it is a copy of.

Times are ns of one clock that all clients of a run share. Source: the operations of Jepsen's kafka
workload (RELIABILITY 1.2).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from threading import Lock
from typing import Any, TextIO

from twisted_broker.interfaces import TopicPartition

Record = tuple[int, str]
"""(offset, value)"""
_COPY_OF = "<"


def copy_of(source: str, name: str) -> str:
    """The value under which a program that reads and writes passes `source` on."""
    return f"{name}{_COPY_OF}{source}"


def source_of(value: str) -> str:
    """What this value is a copy of, "" when of none."""
    return value.partition(_COPY_OF)[2]


class Fate(Enum):
    """What became of a send, as far as its client knows."""

    UNKNOWN = "unknown"
    ACKED = "acknowledged"
    REFUSED = "refused"


class Send:
    """One record on its way in. `completed` is 0 while nothing is known."""

    __slots__ = ("completed", "fate", "invoked", "offset", "op", "partition", "value", "who")

    def __init__(
        self, who: str, partition: TopicPartition, value: str, op: int, invoked: int = 0
    ) -> None:
        self.who, self.partition, self.value, self.op, self.invoked = (
            who,
            partition,
            value,
            op,
            invoked,
        )
        self.fate, self.offset, self.completed = Fate.UNKNOWN, -1, 0

    def __repr__(self) -> str:
        at = f" at {self.offset}" if self.fate is Fate.ACKED else ""
        return f"{self.value!r} of {self.who} to {self.partition}, {self.fate.value}{at}"


class Poll:
    """What one call of a consumer gave."""

    __slots__ = ("at", "records", "tenure", "who")

    def __init__(
        self, who: str, tenure: int, records: Mapping[TopicPartition, Sequence[Record]], at: int = 0
    ) -> None:
        self.who, self.tenure, self.records, self.at = who, tenure, records, at


class Transaction:
    """What is committed or aborted as a whole. `committing`: when its commit was sent, 0: never."""

    __slots__ = ("committing", "fate", "sends", "who")

    def __init__(self, who: str, sends: Sequence[Send]) -> None:
        self.who, self.sends = who, sends
        self.fate, self.committing = Fate.UNKNOWN, 0

    def __repr__(self) -> str:
        sent = "its commit was sent" if self.committing else "no commit was sent"
        values = [send.value for send in self.sends]
        return f"the transaction {values} of {self.who}, {self.fate.value}, {sent}"


class History:
    """All clients of one run. `groups`: consumer -> group, for those that are members of one."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.transactions: dict[tuple[str, int], Transaction] = {}
        """(producer, op) -> transaction"""
        self.groups: dict[str, str] = {}
        self.tenures: dict[str, int] = {}
        self.acknowledged = 0
        self.newest: dict[str, int] = {}
        """producer -> when the youngest of its acknowledged sends was invoked"""
        self.written: dict[TopicPartition, int] = {}
        """partition -> the offset after the last acknowledged send"""
        self.positions: dict[tuple[str, TopicPartition], int] = {}
        """(consumer or group, partition) -> the offset after the last record it was given"""
        self._open: dict[str, Send] = {}

    def send(self, who: str, partition: TopicPartition, value: str, op: int, at: int = 0) -> Send:
        """A client sends a value.

        ValueError when it was sent before: that run could not be judged.
        """
        if value in self._open:
            raise ValueError(
                f"{who} sends {value!r}, which is on its way already: values are sent once"
            )
        sent = self._open[value] = Send(who, partition, value, op, at)
        self.sends.append(sent)
        return sent

    def complete(self, value: str, fate: Fate, offset: int = -1, at: int = 0) -> None:
        """The answer that its client got. KeyError for what is not on its way."""
        sent = self._open.pop(value)
        sent.fate, sent.offset, sent.completed = fate, offset, at
        if fate is Fate.ACKED:
            self.acknowledged += 1
            self.newest[sent.who] = max(sent.invoked, self.newest.get(sent.who, 0))
            end = self.written.get(sent.partition, 0)
            self.written[sent.partition] = max(offset + 1, end)

    def begin(
        self, who: str, op: int, records: Iterable[tuple[TopicPartition, str]], at: int = 0
    ) -> None:
        """A client begins a transaction of these."""
        sends = [self.send(who, partition, value, op, at) for partition, value in records]
        self.transactions[who, op] = Transaction(who, sends)

    def committing(self, who: str, op: int, at: int = 1) -> None:
        """It is about to send the commit."""
        self.transactions[who, op].committing = at

    def end(self, who: str, op: int, fate: Fate, offsets: Sequence[int] = (), at: int = 0) -> None:
        """What the client knows of the end. `offsets`: of the sends, in order, where known."""
        ended = self.transactions[who, op]
        ended.fate = fate
        known = [*offsets, *[-1] * (len(ended.sends) - len(offsets))]
        for send, offset in zip(ended.sends, known, strict=True):
            self.complete(send.value, fate, offset if fate is Fate.ACKED else -1, at)

    def assigned(self, who: str) -> None:
        """The consumer reads on from the position it was given."""
        self.tenures[who] = self.tenures.get(who, 0) + 1

    def poll(
        self, who: str, records: Mapping[TopicPartition, Sequence[Record]], at: int = 0
    ) -> None:
        self.polls.append(Poll(who, self.tenures.get(who, 0), records, at))
        for partition, found in records.items():
            for name in (who, self.groups.get(who)):
                if name is not None and found:
                    self.positions[name, partition] = max(
                        self.positions.get((name, partition), 0), found[-1][0] + 1
                    )

    def take(self, who: str, lines: Iterable[str]) -> int:
        """Takes a client's lines, as a `Recorder` wrote them; gives how many."""
        count = 0
        for line in lines:
            kind, at, *facts = json.loads(line)
            getattr(self, f"_take_{kind}")(who, at, *facts)
            count += 1
        return count

    def _take_send(
        self, who: str, at: int, topic: str, op: int, sent: Sequence[tuple[int, str]]
    ) -> None:
        for partition, value in sent:
            self.send(who, TopicPartition(topic, partition), value, op, at)

    def _take_answered(self, who: str, at: int, fate: str, value: str, offset: int) -> None:
        self.complete(value, Fate(fate), offset, at)

    def _take_begin(
        self, who: str, at: int, op: int, records: Sequence[tuple[str, int, str]]
    ) -> None:
        places = [(TopicPartition(topic, number), value) for topic, number, value in records]
        self.begin(who, op, places, at)

    def _take_committing(self, who: str, at: int, op: int) -> None:
        self.committing(who, op, at)

    def _take_end(self, who: str, at: int, op: int, fate: str, offsets: Sequence[int]) -> None:
        self.end(who, op, Fate(fate), offsets, at)

    def _take_assigned(self, who: str, at: int) -> None:
        self.assigned(who)

    def _take_poll(
        self, who: str, at: int, found: Sequence[tuple[str, int, Sequence[int], Sequence[str]]]
    ) -> None:
        records = {
            TopicPartition(topic, partition): list(zip(offsets, values, strict=True))
            for topic, partition, offsets, values in found
        }
        self.poll(who, records, at)


class Recorder:
    """One client's part of a history, written line by line, from any thread.

    `now_ns`: the run's clock.
    """

    def __init__(self, file: TextIO, now_ns: Callable[[], int]) -> None:
        self._file, self._now_ns = file, now_ns
        self._op = 0
        self._lock = Lock()

    def send(self, topic: str, records: Sequence[tuple[int, str]]) -> None:
        """About to send these (partition, value)s in this order; to be called before they are
        sent.
        """
        self._op += 1
        self._write("send", topic, self._op, records)

    def answered(self, value: str, fate: Fate, offset: int = -1) -> None:
        self._write("answered", fate.value, value, offset)

    def begin(self, records: Sequence[tuple[str, int, str]]) -> int:
        """About to begin a transaction of these (topic, partition, value)s; gives its op."""
        self._op += 1
        self._write("begin", self._op, records)
        return self._op

    def committing(self, op: int) -> None:
        """To be called before the commit is sent."""
        self._write("committing", op)

    def end(self, op: int, fate: Fate, offsets: Sequence[int] = ()) -> None:
        """See `History.end`."""
        self._write("end", op, fate.value, offsets)

    def assigned(self) -> None:
        """From here on the consumer reads from the position it was given."""
        self._write("assigned")

    def poll(self, records: Mapping[tuple[str, int], Sequence[Record]]) -> None:
        """(topic, partition) -> what one call gave.

        To be called before anything of it is committed.
        """
        found = [
            [topic, partition, [each[0] for each in given], [each[1] for each in given]]
            for (topic, partition), given in records.items()
        ]
        if found:
            self._write("poll", found)

    def _write(self, kind: str, *facts: Any) -> None:
        with self._lock:
            self._file.write(
                json.dumps([kind, self._now_ns(), *facts], separators=(",", ":")) + "\n"
            )
            self._file.flush()
