"""A share partition's state at the share coordinator, as others give and get it.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `SharePartitionKey`, `StateBatch`, `ReadState`, `WriteState`, `StateSummary`.

1. A delivery state is 0 (available), 2 (acknowledged) or 4 (archived): an acquired record is not
   stored.
2. The start offset -1 is one that is not decided yet, and in a written state one that stays.

Source: Apache Kafka 4.3.1 `SharePartitionKey`, `PersisterStateBatch`; KIP-932. Not here: how a
partition's leader comes by its states.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_OFFSET = -1
UNKNOWN_COUNT = -1
NO_EPOCH = -1


class SharePartitionKey(NamedTuple):
    """A partition of a topic, as one share group consumes it."""

    group_id: str
    topic_id: bytes
    partition: int


class StateBatch(NamedTuple):
    """Offsets that are all in one state and were delivered equally often."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ReadState(NamedTuple):
    """The state with which a leader begins. `batches`: sorted, none overlap."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...] = ()


class WriteState(NamedTuple):
    """A leader's change of the state. An epoch of -1 is not compared; the batches may overlap."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()


class StateSummary(NamedTuple):
    """As of a partition that was never initialised, unless it says otherwise.
    `delivery_complete_count`: the offsets from the start on that are finished.
    """

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNKNOWN_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
