"""The consequences of an input of the core, in order.

1. Each write has a number, `seq`, which rises; `persisted(seq)` says that it and all before it are
   durable.
2. `after` of a message is the write that must be durable before it leaves.
3. What an answer reads of the log is read when the consequence is carried out, not when the
   message leaves.

Source: QU 0.4. Not here: who carries them out (`cluster/metadata_log.py`, `tests/raft`).
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.raft.election_state import ElectionState
from twisted_broker.raft.log_view import Batch, OffsetAndEpoch
from twisted_broker.raft.messages import Answer, Request
from twisted_broker.raft.replica_key import Address


class SaveElection(NamedTuple):
    """quorum-state is written."""

    state: ElectionState
    kraft_version: int
    voters: tuple[int, ...]
    seq: int


class Append(NamedTuple):
    """A batch goes behind the last one."""

    batch: Batch
    seq: int


class Truncate(NamedTuple):
    """The durable end is lowered first."""

    offset: int
    seq: int


class StartSnapshot(NamedTuple):
    """A download begins; an earlier one is dropped."""

    id: OffsetAndEpoch


class AppendSnapshot(NamedTuple):
    """The next bytes of the download."""

    id: OffsetAndEpoch
    content: bytes


class DropSnapshot(NamedTuple):
    """The download is given up."""

    id: OffsetAndEpoch


class FinishSnapshot(NamedTuple):
    """It is whole, or was here already: once it is durable under its name and read, the core gets
    `snapshot_received`.
    """

    id: OffsetAndEpoch


class TruncateToSnapshot(NamedTuple):
    """The log is emptied and starts at the snapshot's end."""

    id: OffsetAndEpoch
    seq: int


class Send(NamedTuple):
    """A request to another node; its answer comes with this `correlation`."""

    node: int
    address: Address
    correlation: int
    request: Request
    after: int


class Reply(NamedTuple):
    """The answer to another node's request."""

    correlation: object
    answer: Answer
    after: int


class HighWatermark(NamedTuple):
    """Records below it are committed."""

    offset: int


class Leader(NamedTuple):
    """`id` -1: none is known. Where it is this node, its epoch's first record is at
    `start_offset`.
    """

    id: int
    epoch: int
    start_offset: int = -1


class Say(NamedTuple):
    """One line for people."""

    line: str
    is_warning: bool = False


class Stop(NamedTuple):
    """This node must not go on. `reason` "": it was asked to stop, and may end now."""

    reason: str = ""


Consequence = (
    SaveElection
    | Append
    | Truncate
    | StartSnapshot
    | AppendSnapshot
    | DropSnapshot
    | FinishSnapshot
    | TruncateToSnapshot
    | Send
    | Reply
    | HighWatermark
    | Leader
    | Say
    | Stop
)


class Outbox:
    """Collects the consequences of one input. `state_seq`, `log_seq`: the newest write of the
    election state, and of the log.
    """

    def __init__(self) -> None:
        self._found: list[Consequence] = []
        self.seq = self.state_seq = self.log_seq = 0
        self._said: ElectionState | None = None

    def take(self) -> list[Consequence]:
        found, self._found = self._found, []
        return found

    def take_appends(self) -> list[Append]:
        """Takes the appends; the rest stays."""
        found = [each for each in self._found if isinstance(each, Append)]
        if len(found) < len(self._found):
            self._found = [each for each in self._found if not isinstance(each, Append)]
        else:
            self._found = []
        return found

    def add(self, consequence: Consequence) -> None:
        self._found.append(consequence)

    def save(self, state: ElectionState, kraft_version: int, voters: tuple[int, ...]) -> None:
        """Not again, where it says nothing new."""
        if state != self._said:
            self._said = state
            self.seq = self.state_seq = self.seq + 1
            self.add(SaveElection(state, kraft_version, voters, self.seq))

    def append(self, batch: Batch) -> int:
        self.seq = self.log_seq = self.seq + 1
        self.add(Append(batch, self.seq))
        return self.seq

    def truncate(self, offset: int) -> None:
        self.seq = self.log_seq = self.seq + 1
        self.add(Truncate(offset, self.seq))

    def truncate_to_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        self.seq = self.log_seq = self.seq + 1
        self.add(TruncateToSnapshot(snapshot, self.seq))

    def reply(self, correlation: object, answer: Answer) -> None:
        self.add(Reply(correlation, answer, self.state_seq))

    def say(self, line: str, is_warning: bool = False) -> None:
        self.add(Say(line, is_warning))
