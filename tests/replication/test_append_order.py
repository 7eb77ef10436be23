"""What a leader checks before it appends, in which order and against which ISR, and what each
refusal leaves alone (RL 1.6, 1.14, 2.5).
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from tests.replication.fixtures import (
    LOCAL,
    TP,
    WALL_MS,
    Fixture,
    PartitionFixture,
    batch,
    code_of,
    registration,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.isr_state import PendingExpand, PendingShrink
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.records import BatchBuilder

NEXT = TopicPartition("t", 1)
DAY_MS = 86_400_000


def idempotent(sequence: int, epoch: int = 1) -> bytes:
    return batch(producer_id=9, producer_epoch=epoch, base_sequence=sequence)


def corrupt() -> bytes:
    records = bytearray(batch())
    records[-1] ^= 1
    return bytes(records)


def without_key() -> bytes:
    builder = BatchBuilder()
    builder.append(WALL_MS, None, b"v")
    return builder.build()


@pytest.mark.parametrize(
    ("code", "settings", "records"),
    [
        ("MESSAGE_TOO_LARGE", {"max.message.bytes": "100"}, batch(value=b"x" * 200)),
        (
            "RECORD_LIST_TOO_LARGE",
            {"segment.bytes": "1048576", "max.message.bytes": "4194304"},
            batch(value=b"x" * 1_100_000),
        ),
        ("CORRUPT_MESSAGE", {}, corrupt()),
        (
            "INVALID_TIMESTAMP",
            {"message.timestamp.before.max.ms": "1000"},
            batch(timestamp=WALL_MS - DAY_MS),
        ),
        (
            "INVALID_TIMESTAMP",
            {"message.timestamp.after.max.ms": "1000"},
            batch(timestamp=WALL_MS + DAY_MS),
        ),
        ("INVALID_RECORD", {"cleanup.policy": "compact"}, without_key()),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", {}, idempotent(5)),
        ("INVALID_PRODUCER_EPOCH", {}, idempotent(1, epoch=0)),
        ("NOT_ENOUGH_REPLICAS", {"min.insync.replicas": "2"}, batch()),
    ],
)
def test_a_refused_append_writes_nothing_and_leaves_the_others_alone(
    code: str, settings: dict[str, str], records: bytes
) -> None:
    """RL 1.6: each refusal of the log and of the minimum ISR: its own code, base offset -1,
    nothing written; the next partition is appended.
    """
    fixture = Fixture()
    fixture.topic(
        states={0: registration(LOCAL, (1, 2), (1,)), 1: registration(LOCAL, (1,))}, overrides={}
    )
    for partition in (TP, NEXT):
        assert fixture.replicas.produce([(partition, idempotent(0))], 1)[0].error == ErrorCode.NONE
    fixture.topic(
        states={0: registration(LOCAL, (1, 2), (1,)), 1: registration(LOCAL, (1,))},
        overrides=settings,
    )
    refused, other = fixture.replicas.produce([(TP, records), (NEXT, idempotent(1))], -1)
    assert (refused.error, refused.base_offset) == (ErrorCode[code], -1)
    assert fixture.partition().log.log_end_offset == 1
    assert other.error == ErrorCode.NONE and fixture.partition(NEXT).log.log_end_offset == 2


def test_leadership_is_checked_before_the_minimum_isr_and_that_before_the_records() -> None:
    """RL 1.14: leader, minimum ISR, log, in this order: the first one that refuses says why."""
    fixture = PartitionFixture(isr=(1,), config=LogConfig(min_insync_replicas=2))
    append = fixture.partition.append_as_leader
    assert (
        code_of(append, corrupt(), -1, WALL_MS, fixture.now_ms, AppendOrigin.CLIENT)
        == ErrorCode.NOT_ENOUGH_REPLICAS
    )
    assert (
        code_of(append, corrupt(), 1, WALL_MS, fixture.now_ms, AppendOrigin.CLIENT)
        == ErrorCode.CORRUPT_MESSAGE
    )
    fixture.partition.make_follower(registration(2, (1, 2, 3), (2,), 6, 11), fixture.log)
    assert (
        code_of(append, corrupt(), -1, WALL_MS, fixture.now_ms, AppendOrigin.CLIENT)
        == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_before_an_append_the_committed_isr_counts_while_it_grows() -> None:
    """RL 2.5: an expansion on its way does not make enough replicas for the check before an
    append; for what is appended it does.
    """
    fixture = PartitionFixture(isr=(1,), config=LogConfig(min_insync_replicas=2))
    fixture.append(1, acks=1)
    fixture.follower_fetches(2, 1)
    assert isinstance(fixture.partition.isr_state, PendingExpand)
    assert code_of(fixture.append, 1, acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS
    fixture.log.set_high_watermark(1)
    assert fixture.partition.enough_replicas_reached(1) == ErrorCode.NONE


def test_before_an_append_the_committed_isr_counts_while_it_shrinks() -> None:
    """RL 2.5: until the controller has confirmed a shrink, who is about to leave is still a
    member for both checks.
    """
    fixture = PartitionFixture(isr=(1, 2), config=LogConfig(min_insync_replicas=2))
    fixture.append(1)
    fixture.partition.maybe_shrink_isr(fixture.now_ms + 60_000)
    assert isinstance(fixture.partition.isr_state, PendingShrink)
    fixture.append(1, acks=-1)
    fixture.log.set_high_watermark(2)
    assert fixture.partition.enough_replicas_reached(2) == ErrorCode.NONE


class Tried:
    """Something that waits, and notes under which key something happened."""

    def __init__(self, name: str, tried: list[tuple[str, Hashable]]) -> None:
        self.name, self.tried = name, tried

    def is_complete(self, changed: Hashable = None) -> bool:
        self.tried.append((self.name, changed))
        return False

    def expire(self) -> None:
        """Nothing is left to do."""


def test_what_an_append_makes_happen() -> None:
    """RL 1.14: the high watermark moved: produces, fetches and deletions that wait are tried;
    else fetches alone.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(LOCAL, (1, 2)), 1: registration(LOCAL, (1,))})
    tried: list[tuple[str, Hashable]] = []
    for purgatory in (
        fixture.replicas.produce_purgatory,
        fixture.replicas.fetch_purgatory,
        fixture.replicas.delete_records_purgatory,
    ):
        waiting = Tried(purgatory.name, tried)
        purgatory.try_complete_else_watch(waiting, [TP, NEXT], 60_000)
    tried.clear()
    fixture.produce(tp=TP)
    assert tried == [("Fetch", TP)]
    tried.clear()
    fixture.produce(tp=NEXT)
    assert tried == [("Produce", NEXT), ("Fetch", NEXT), ("DeleteRecords", NEXT)]
