"""The input of an assignor. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `AssignorMember`, `GroupSpec`.

1. Racks are not part of it: in 4.3 they influence nothing but the hash.

Source: Apache Kafka 4.3.1 `GroupSpec`, `MemberSubscription`, `ConsumerGroupPartitionAssignor`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from twisted_broker.coordinator.consumer.partitions import Target

# A step of about a millisecond (`turns.py`, invariant 4).
PARTITIONS_PER_STEP = 1_000


@dataclass(frozen=True, slots=True)
class AssignorMember:
    """`topics`: ids of the existing topics to which it subscribes. `target`: its present target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    target: Target


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`members` are in the order of their ids; `partitions` counts those of each topic."""

    members: tuple[AssignorMember, ...]
    partitions: Mapping[bytes, int]
    are_alike: bool


Assignor = Callable[[GroupSpec], Generator[None, None, dict[str, Target]]]
"""The target of every member, in steps."""
