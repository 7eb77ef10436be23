"""Which voters, and which kraft.version, are in force at which offset of the metadata log.

1. A control record counts from the moment it is appended, committed or not, and no more once it
   is truncated.
2. Voters of the log win over those of `controller.quorum.voters`.
3. A snapshot's control records count as of its last offset; the bootstrap snapshot's is -1.

Source: Kafka's `KRaftControlRecordStateMachine`, `VoterSetHistory`; QU 3.13, 4.1, 4.3, 9.12,
9.19. As long as the log behind its oldest snapshot has such records. Not here: who writes them
(`voter_changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from twisted_broker.raft.voter_set import VoterSet

T = TypeVar("T")


class LeaderChange(NamedTuple):
    """The first record of an epoch."""

    leader_id: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


class KRaftVersion(NamedTuple):
    """The finalised kraft.version."""

    level: int


class Voters(NamedTuple):
    """The voters in force from here on."""

    voters: VoterSet


ControlRecord = LeaderChange | KRaftVersion | Voters


class _Values(Generic[T]):
    """Values by the offset from which on they hold."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, T]] = []

    def add(self, offset: int, value: T) -> None:
        assert not self._rows or offset > self._rows[-1][0], offset
        self._rows.append((offset, value))

    @property
    def last(self) -> tuple[int, T] | None:
        return self._rows[-1] if self._rows else None

    def at(self, offset: int) -> T | None:
        return next((value for start, value in reversed(self._rows) if start <= offset), None)

    def truncate(self, end_offset: int) -> None:
        while self._rows and self._rows[-1][0] >= end_offset:
            self._rows.pop()

    def forget_before(self, offset: int) -> None:
        """The last one at or below `offset` still holds there."""
        while len(self._rows) > 1 and self._rows[1][0] <= offset:
            del self._rows[0]

    def clear(self) -> None:
        self._rows.clear()


class VoterHistory:
    """`static`: the voters of `controller.quorum.voters`, which may be set before anybody asks."""

    def __init__(self, static: VoterSet) -> None:
        self.static = static
        self._voters: _Values[VoterSet] = _Values()
        self._levels: _Values[int] = _Values()

    @property
    def voters(self) -> VoterSet:
        """Those in force."""
        last = self._voters.last
        return self.static if last is None else last[1]

    @property
    def voters_offset(self) -> int | None:
        """Of the record that says them; None: they are of the configuration."""
        last = self._voters.last
        return None if last is None else last[0]

    @property
    def kraft_version(self) -> int:
        last = self._levels.last
        return 0 if last is None else last[1]

    def records_at(self, offset: int) -> tuple[ControlRecord, ...]:
        """Level and voters for a snapshot up to `offset`: none where kraft.version is 0."""
        level, voters = self.kraft_version_at(offset), self._voters.at(offset)
        if not level or voters is None:
            return ()
        return KRaftVersion(level), Voters(voters)

    def voters_at(self, offset: int) -> VoterSet:
        found = self._voters.at(offset)
        return self.static if found is None else found

    def kraft_version_at(self, offset: int) -> int:
        return self._levels.at(offset) or 0

    def append(self, base_offset: int, records: Iterable[ControlRecord | None]) -> None:
        """The control records of a batch that begins at `base_offset`; None: of another kind."""
        for offset, record in enumerate(records, base_offset):
            if isinstance(record, Voters):
                self._voters.add(offset, record.voters)
            elif isinstance(record, KRaftVersion):
                self._levels.add(offset, record.level)

    def snapshot(self, last_offset: int, records: Iterable[ControlRecord | None]) -> None:
        """A snapshot takes the place of the log."""
        self._voters.clear()
        self._levels.clear()
        for record in records:
            if isinstance(record, Voters):
                self._voters.add(last_offset, record.voters)
            elif isinstance(record, KRaftVersion):
                self._levels.add(last_offset, record.level)

    def truncate(self, end_offset: int) -> None:
        self._voters.truncate(end_offset)
        self._levels.truncate(end_offset)

    def forget_before(self, offset: int) -> None:
        self._voters.forget_before(offset)
        self._levels.forget_before(offset)
