"""How a partition moves from one set of replicas to another (KIP-455).

    assigned --reassign--> merged: target, then those to be removed --(the target is in the ISR)-->
    the target alone
        ^                                |
        +------------cancel--------------+   added replicas go, those to be removed stay

1. While it lasts the replicas are the target followed by those to be removed; the first of the
   target is the preferred leader.
2. It is over when every replica of the target is in the ISR; then those to be removed leave
   replicas and ISR in one record.
3. Replicas never become empty, nor does the ISR by a reassignment.

Source: Kafka's `PartitionReassignmentReplicas`, `PartitionReassignmentRevert`; KIP-455, KIP-860;
`RL 8.5`. Not here: the record (`partition_change.py`), the requests (`partition_requests.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twisted_broker.image.entries import PartitionRegistration

Ids = tuple[int, ...]


class Assignment(NamedTuple):
    """Replicas, and which of them a reassignment takes away or has added."""

    replicas: Ids
    removing: Ids = ()
    adding: Ids = ()

    @classmethod
    def of(cls, partition: PartitionRegistration) -> Assignment:
        return cls(partition.replicas, partition.removing, partition.adding)

    @property
    def in_progress(self) -> bool:
        return bool(self.removing or self.adding)

    @property
    def target(self) -> Ids:
        return _without(self.replicas, self.removing)


def reassigned(partition: PartitionRegistration, target: Sequence[int]) -> Assignment:
    """The assignment when `target` is requested.

    One that was under way is replaced; what it was adding stays known when nothing new is added.
    """
    removing = tuple(sorted(set(partition.replicas) - set(target)))
    adding = tuple(sorted(set(target) - set(partition.replicas)))
    replicas = (*target, *removing)
    return Assignment(replicas, removing, adding or partition.adding)


def completed(assignment: Assignment, isr: Sequence[int]) -> tuple[Assignment, list[int]] | None:
    """The assignment and the ISR when the reassignment ends with this ISR; None when it does
    not, or there is none.
    """
    if not assignment.in_progress:
        return None
    target, members = assignment.target, list(_without(isr, assignment.removing))
    if not target or not members or not set(target) <= set(members):
        return None
    return Assignment(target), members


class Reverted(NamedTuple):
    """After a cancellation.

    An empty ISR: nobody who stays is in sync, so that going back takes an unclean election.
    """

    assignment: Assignment
    isr: Ids


def reverted(partition: PartitionRegistration) -> Reverted:
    """Takes a reassignment back."""
    replicas = _without(partition.replicas, partition.adding) or partition.replicas
    return Reverted(
        Assignment(replicas), tuple(member for member in partition.isr if member in replicas)
    )


def replication_factor(partition: PartitionRegistration) -> int:
    """How many replicas it has, or will have when its reassignment ends."""
    return len(Assignment.of(partition).target) or len(partition.replicas)


def _without(brokers: Sequence[int], gone: Sequence[int]) -> Ids:
    return tuple(broker for broker in brokers if broker not in gone)
