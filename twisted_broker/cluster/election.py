"""Who may lead a partition, and who does.

Owns the choice of a leader among a partition's replicas. Pure: what is known of brokers comes as
`acceptable`.

1. A leader is an acceptable (unfenced, not shutting down, directory alive) replica in the ISR; with
   an empty ISR one of the eligible leader replicas (ELR); with both empty, the last known leader.
   Where that finds nobody, an unclean election takes any acceptable replica: also while the ISR or
   the ELR has members, of which none is acceptable.
2. The leader that serves stays, unless the preferred one is requested and may lead.
3. An election that may have lost records says so (`unclean`), and is recorded as recovering.

Source: Kafka's `PartitionChangeBuilder` (elect parts), KIP-966, KIP-106; `RL 8.3`.
Not here: the record of it (`partition_change.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from twisted_broker.image.entries import NO_LEADER

Acceptable = Callable[[int], bool]


class Election(Enum):
    """Which leader is wanted: the preferred one, any clean one, or anyone at all."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


class Candidates(NamedTuple):
    """The input of an election: the state after the change it belongs to."""

    replicas: Sequence[int]
    isr: Sequence[int]
    elr: Sequence[int]
    last_known_elr: Sequence[int]
    leader: int


class Elected(NamedTuple):
    """The outcome; leader NO_LEADER: nobody."""

    leader: int
    unclean: bool


def elect(candidates: Candidates, acceptable: Acceptable, election: Election) -> Elected:
    """Chooses the leader. `acceptable(broker)`: whether that replica may lead now."""

    def valid(broker: int) -> bool:
        return (
            broker in candidates.isr or (not candidates.isr and broker in candidates.elr)
        ) and acceptable(broker)

    if election is Election.PREFERRED and valid(candidates.replicas[0]):
        return Elected(candidates.replicas[0], False)
    if valid(candidates.leader):
        return Elected(candidates.leader, False)
    for broker in candidates.replicas:
        if valid(broker):
            return Elected(broker, False)
    return _unclean(candidates, acceptable, election)


def _unclean(candidates: Candidates, acceptable: Acceptable, election: Election) -> Elected:
    known = candidates.last_known_elr
    # The last known leader, when the ISR and the ELR are empty: only a single one is known to be as
    # far ahead as any other (KIP-966).
    if (
        not candidates.isr
        and not candidates.elr
        and len(known) == 1
        and known[0] in candidates.replicas
        and acceptable(known[0])
    ):
        return Elected(known[0], True)
    if election is Election.UNCLEAN:
        for broker in candidates.replicas:
            if acceptable(broker):
                return Elected(broker, True)
    return Elected(NO_LEADER, False)
