"""The metadata log's frame and batches against bytes that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.fixtures import decoded
from twisted_broker.cluster.records import (
    RECORD_TYPES,
    TransactionBuffer,
    build_batch,
    decode_record,
    encode_record,
    record_version,
)
from twisted_broker.cluster.snapshots import SnapshotId, image_of
from twisted_broker.image.entries import NO_LEADER
from twisted_broker.image.metadata_image import EMPTY
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.records import iterate_batches

GOLDEN = Path(__file__).parent / "golden"
LOG = (GOLDEN / "00000000000000000000.log").read_bytes()
SNAPSHOT = (GOLDEN / "00000000000000000051-0000000001.checkpoint").read_bytes()


def test_kafkas_records_decode_and_encode_to_the_same_bytes() -> None:
    """RL 8.1: every record of Kafka's metadata log is understood, and written again in Kafka's
    version to Kafka's bytes.
    """
    seen = set()
    for batch in iterate_batches(LOG):
        if batch.is_control:
            continue
        for framed in batch.records(1 << 20):
            record, version = decode_record(framed.value)
            seen.add(type(record).__name__)
            assert encode_record(record, version) == framed.value
            assert record_version(record, 30) == version
    assert {
        "BeginTransactionRecord",
        "RegisterBrokerRecord",
        "PartitionChangeRecord",
        "ProducerIdsRecord",
        "UserScramCredentialRecord",
    } <= seen


def test_kafkas_batches_are_built_again_byte_by_byte() -> None:
    """RL 8.1: the batch around the records, CRC included, is the one that Kafka built."""
    built = b""
    for batch in iterate_batches(LOG):
        if batch.is_control:
            built += LOG[batch.offset : batch.offset + batch.size_in_bytes]
        else:
            built += build_batch(
                decoded(batch),
                batch.base_offset,
                batch.partition_leader_epoch,
                batch.base_timestamp,
                30,
            )
    assert built == LOG


def test_kafkas_log_gives_the_image_it_describes() -> None:
    """RL 8.1, 8.3: topics, settings, a deletion and the controlled shutdown of a lone broker
    (its partitions wait in the ELR).
    """
    image, transactions = EMPTY, TransactionBuffer()
    for batch in iterate_batches(LOG):
        if not batch.is_control:
            image, _ = image.apply(transactions.pass_through(decoded(batch)), batch.last_offset)
    assert sorted(image.topics_by_name) == ["alpha", "gamma"]
    assert image.features["metadata.version"] == 30
    assert image.config(2, "alpha") == {"cleanup.policy": "compact", "retention.ms": "120000"}
    assert image.next_producer_id == 1000
    assert image.brokers[1].fenced and image.brokers[1].in_controlled_shutdown
    partition = image.topics_by_name["alpha"].partitions[2]
    assert (partition.isr, partition.leader, partition.elr, partition.last_known_elr) == (
        (),
        NO_LEADER,
        (1,),
        (1,),
    )
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)


def test_kafkas_snapshot_says_what_its_log_says() -> None:
    """RL 8.1: a snapshot that Kafka wrote gives the image of the log up to its offset."""
    image, transactions = EMPTY, TransactionBuffer()
    for batch in iterate_batches(LOG):
        if batch.last_offset < 51 and not batch.is_control:
            image, _ = image.apply(
                transactions.pass_through(decoded(batch)),
                batch.last_offset,
                1,
                batch.max_timestamp,
            )
    assert image_of(SNAPSHOT, SnapshotId(51, 1)) == image


def test_a_snapshot_without_its_end_is_refused() -> None:
    """RL 8.1: a snapshot that was cut anywhere between batches does not pass for a whole one."""
    ends = [batch.offset for batch in iterate_batches(SNAPSHOT)][1:]
    for end in ends:
        with pytest.raises(WireError):
            image_of(SNAPSHOT[:end], SnapshotId(51, 1))


FRAMES = [
    None,
    b"",
    b"\x01",
    b"\x01\x02",
    b"\x02\x14\x00\x00",
    b"\x01\x63\x00\x00",
    b"\x01\x05\x09\x00",
    b"\x01\x14\x00\x00\x00",
]


@pytest.mark.parametrize("frame", FRAMES)
def test_what_is_not_known_stops_the_reader(frame: bytes | None) -> None:
    """KRAFT 3.3: another frame version, record type or record version, or bytes that do not fit,
    are never passed over.
    """
    with pytest.raises(WireError):
        decode_record(frame)


def test_all_of_kafkas_record_types_are_known() -> None:
    """KRAFT 3.3: 4.3.1 has 26 types; those that Kafka dropped have left holes in the numbers."""
    assert set(RECORD_TYPES) == set(range(0, 29)) - {6, 13, 16}


def test_a_transaction_is_applied_when_it_ends_or_never() -> None:
    """KRAFT 3.3: what lies between Begin and End comes together; after Abort nothing comes."""
    begin, end, abort = (
        records.BeginTransactionRecord(name="t"),
        records.EndTransactionRecord(),
        records.AbortTransactionRecord(),
    )
    one, two = records.NoOpRecord(), records.FeatureLevelRecord(name="f", feature_level=1)
    buffer = TransactionBuffer()
    assert buffer.pass_through([one, begin, two]) == [one]
    assert buffer.open
    assert buffer.pass_through([one, end, one]) == [two, one, one]
    assert buffer.pass_through([begin, two, abort, one]) == [one]
    with pytest.raises(WireError):
        buffer.pass_through([end])
    with pytest.raises(WireError):
        buffer.pass_through([begin, begin])
