"""Where the replicas of new partitions go: striped over racks and brokers.

Owns `StripedReplicaPlacer`, a state machine fed by a seeded `Random`, and the check of assignments
that people write by hand.

1. No broker holds two replicas of a partition; the first replica is on a broker that is not fenced.
2. Racks take turns, and in a rack its brokers take turns: over a round of all brokers leadership is
   even.
3. Fenced brokers, and those that shut down, are used only when the brokers that live are too few
   for the replication factor; cordoned ones never.

Source: Kafka's `StripedReplicaPlacer`; `RL 8.5`. Not here: choice of a log directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from twisted_broker.image.entries import UNASSIGNED, BrokerRegistration
from twisted_broker.interfaces import IRandom
from twisted_broker.wire.errors import BrokerError, ErrorCode


class _Ring:
    """Brokers in turn: each epoch starts one further along and gives every broker once."""

    __slots__ = ("brokers", "epoch", "given", "offset")

    def __init__(self) -> None:
        self.brokers: list[int] = []
        self.epoch = self.given = self.offset = 0

    def shuffle(self, random: IRandom) -> None:
        self.brokers.sort()
        random.shuffle(self.brokers)
        self.epoch = self.given = self.offset = 0

    def next(self, epoch: int) -> int | None:
        if not self.brokers:
            return None
        if self.epoch != epoch:
            self.epoch, self.given, self.offset = epoch, 0, (self.offset + 1) % len(self.brokers)
        if self.given >= len(self.brokers):
            return None
        self.given += 1
        return self.brokers[(self.given - 1 + self.offset) % len(self.brokers)]


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self) -> None:
        self.fenced, self.unfenced = _Ring(), _Ring()

    def next(self, epoch: int) -> int | None:
        broker = self.unfenced.next(epoch)
        return self.fenced.next(epoch) if broker is None else broker


class StripedReplicaPlacer:
    """Places one partition after another on `brokers` (those that take new replicas): an
    unfenced one leads, racks take turns.
    """

    __slots__ = ("_epoch", "_offset", "_racks", "_random", "_total", "_unfenced")

    def __init__(self, brokers: Iterable[BrokerRegistration], random: IRandom) -> None:
        # Brokers without a rack are a rack of their own, apart from one that is named "".
        racks: dict[tuple[bool, str], _Rack] = {}
        self._total = self._unfenced = 0
        for broker in brokers:
            if not accepts_replicas(broker):
                continue
            rack = racks.setdefault((broker.rack is not None, broker.rack or ""), _Rack())
            # One that shuts down is in no new ISR: with it alone a partition is refused.
            (rack.unfenced if broker.may_be_in_isr else rack.fenced).brokers.append(broker.id)
            self._total += 1
            self._unfenced += broker.may_be_in_isr
        # Sorted before it is shuffled: a seed then gives the same placement everywhere.
        self._racks = [racks[name] for name in sorted(racks)]
        self._random = random
        self._epoch = 0
        self._shuffle()

    def _shuffle(self) -> None:
        for rack in self._racks:
            rack.fenced.shuffle(self._random)
            rack.unfenced.shuffle(self._random)
        self._random.shuffle(self._racks)
        self._offset = 0

    def check(self, replication_factor: int) -> None:
        """Raises BrokerError(INVALID_REPLICATION_FACTOR) when no assignment can have so many
        replicas.
        """
        if replication_factor <= 0:
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be positive"
            )
        if self._unfenced == 0:
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are fenced now")
        if replication_factor > self._total:
            words = (
                f"replication factor {replication_factor} cannot be reached: "
                f"{self._total} broker(s) are registered"
            )
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, words)

    def place(self, replication_factor: int) -> list[int]:
        """The replicas of the next partition, preferred leader first. Raises as `check`."""
        self.check(replication_factor)
        if self._epoch == self._unfenced:
            self._shuffle()
            self._epoch = 0
        self._offset %= len(self._racks)
        first_rack, leader = self._first(self._offset)
        chosen = [leader]
        rack = self._offset
        skip = first_rack
        while len(chosen) < replication_factor:
            if rack == skip:
                skip = -1
            else:
                broker = self._racks[rack].next(self._epoch)
                if broker is not None:
                    chosen.append(broker)
            rack = (rack + 1) % len(self._racks)
        self._epoch += 1
        self._offset += 1
        return chosen

    def _first(self, rack: int) -> tuple[int, int]:
        while True:
            broker = self._racks[rack].unfenced.next(self._epoch)
            if broker is not None:
                return rack, broker
            rack = (rack + 1) % len(self._racks)


def accepts_replicas(broker: BrokerRegistration) -> bool:
    """Not when every directory of it is cordoned."""
    return not broker.cordoned or not set(broker.directories) <= set(broker.cordoned)


def default_directory(broker: BrokerRegistration | None) -> bytes:
    """The directory that a new replica certainly gets: the only one, else UNASSIGNED."""
    if broker is None or len(broker.directories) != 1:
        return UNASSIGNED
    return broker.directories[0]


def check_manual_assignment(
    replicas: Sequence[int], known: Collection[int], replication_factor: int | None
) -> None:
    """Raises BrokerError(INVALID_REPLICA_ASSIGNMENT) for a list of replicas that cannot be."""
    words = ""
    if not replicas:
        words = "a manual assignment names no replica"
    elif len(set(replicas)) != len(replicas):
        words = f"a manual assignment names a broker twice: {list(replicas)}"
    elif missing := [broker for broker in sorted(replicas) if broker not in known]:
        words = f"a manual assignment names broker {missing[0]}, which is not registered"
    elif replication_factor is not None and len(replicas) != replication_factor:
        words = (
            f"a manual assignment has {len(replicas)} replica(s) where others have "
            f"{replication_factor}"
        )
    if words:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
