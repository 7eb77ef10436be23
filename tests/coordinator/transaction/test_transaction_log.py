"""Records of `__transaction_state` to the byte, as Kafka 4.3.1 wrote them."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from twisted_broker.coordinator.group_records import MalformedRecord
from twisted_broker.coordinator.transaction import transaction_log
from twisted_broker.coordinator.transaction.transaction_log import (
    batch_of,
    read_record,
    transaction_record,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    TransactionMetadata,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.records import iterate_batches, set_offsets_and_epoch

GOLDEN = Path(__file__).parents[2] / "cli/golden/kafka-4.3.1/__transaction_state-0"


def golden_records() -> list[tuple[bytes | None, bytes | None]]:
    return [
        (record.key, record.value)
        for path in sorted(GOLDEN.glob("*.log"))
        for batch in iterate_batches(path.read_bytes())
        for record in batch.records()
    ]


def test_the_bytes_of_kafka() -> None:
    """Each record of a real coordinator is read, and written again to the byte."""
    records = golden_records()
    states = []
    for key, value in records:
        read = read_record(key, value)
        assert read is not None and read.value is not None
        states.append(read.value.state.name)
        assert transaction_record(read.transactional_id, read.value.unchanged(), 2) == (key, value)
    assert states[:4] == ["EMPTY", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
    assert len(records) == 13


def test_a_whole_batch_of_kafka() -> None:
    """Header and all: no producer, no sequence."""
    (path,) = GOLDEN.glob("*.log")
    count = 0
    for batch in iterate_batches(path.read_bytes()):
        records = list(batch.records())
        ours = bytearray(batch_of([(r.key, r.value) for r in records], batch.max_timestamp))
        set_offsets_and_epoch(ours, batch.base_offset, batch.partition_leader_epoch)
        assert bytes(ours) == bytes(batch.buffer[batch.offset : batch.offset + len(ours)])
        count += 1
    assert count == 13


def full() -> TransactionMetadata:
    return TransactionMetadata(
        "txn-é",
        7,
        timeout_ms=60_000,
        last_update_ms=1_700_000_000_500,
        producer_epoch=3,
        previous_producer_id=7,
        next_producer_id=9,
        state=ONGOING,
        partitions=[TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)],
        start_ms=1_700_000_000_000,
        client_transaction_version=2,
    )


@pytest.mark.parametrize(("level", "version"), [(0, 0), (1, 1), (2, 1)])
def test_version_by_level(level: int, version: int) -> None:
    """transaction.version decides over the value's version; version 0 drops what it has no place
    for.
    """
    key, value = transaction_record("txn-é", full().unchanged(), level)
    assert value is not None and value[:2] == bytes([0, version])
    read = read_record(key, value)
    assert read is not None and read.value is not None
    assert read.transactional_id == "txn-é"
    again = read.value
    assert again.partitions == full().partitions
    assert (again.state, again.timeout_ms, again.producer_epoch) == (ONGOING, 60_000, 3)
    extra = (again.previous_producer_id, again.next_producer_id, again.client_transaction_version)
    assert extra == ((7, 9, 2) if version else (-1, -1, 0))


def test_tagged_fields_that_are_not_known() -> None:
    """`testDeserializeFutureTransactionLogValue` of Kafka's `TransactionLogTest`: ignored, outside
    and in a partition's entry.
    """
    unknown = b"\x09\x03abc"  # tag 9, three bytes
    partition_entry = b"\x02t" + b"\x02" + struct.pack(">i", 4) + b"\x01" + unknown
    value = (
        struct.pack(">hqhib", 1, 7, 3, 60_000, ONGOING)
        + b"\x02"
        + partition_entry
        + struct.pack(">qq", 1000, 900)
        + b"\x02\x02\x02\x00\x02"  # two tagged fields: the client's version, which is 2
        + unknown
    )
    key, _ = transaction_record("t", None, 2)
    read = read_record(key, value)
    assert read is not None and read.value is not None
    found = read.value
    assert (found.producer_id, found.producer_epoch, found.state) == (7, 3, ONGOING)
    assert (found.last_update_ms, found.start_ms, found.timeout_ms) == (1000, 900, 60_000)
    assert found.partitions == {TopicPartition("t", 4)}
    assert found.client_transaction_version == 2


def test_empty_has_no_partitions() -> None:
    """Null in EMPTY, an empty list in the states that had some."""
    empty = TransactionMetadata("t", 1, timeout_ms=1, last_update_ms=0, producer_epoch=0)
    _, value = transaction_record("t", empty.unchanged(), 0)
    assert value is not None and value[17:21] == b"\xff\xff\xff\xff"
    empty.state = COMPLETE_COMMIT
    _, value = transaction_record("t", empty.unchanged(), 0)
    assert value is not None and value[17:21] == b"\0\0\0\0"
    assert empty.state is not EMPTY


def test_tombstone() -> None:
    key, value = transaction_record("t", None, 2)
    assert value is None
    assert read_record(key, None) == ("t", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0", b""),
        (b"\0\0\0", None),
        (b"\0\0\0\x01t", b"\0"),
        (b"\0\0\0\x01t", b"\0\x02"),
        (b"\0\0\0\x01t", b"\0\x01\0"),
        # a state that does not exist
        (b"\0\0\0\x01t", b"\0\0" + bytes(14) + b"\x63" + bytes(20)),
    ],
)
def test_malformed(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        read_record(key, value)


def test_another_key_is_left_alone() -> None:
    assert read_record(b"\0\x05whatever", b"") is None


def test_a_value_in_one_step_says_what_the_whole_decoder_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tagged fields that there may be, partitions null or none, and each byte changed."""
    values = []
    for state in (EMPTY, COMPLETE_COMMIT):
        for previous, following, client in ((-1, -1, 0), (-1, -1, 2), (7, -1, 2), (7, 8, 2)):
            each = TransactionMetadata(
                "t",
                7,
                timeout_ms=60_000,
                last_update_ms=1000,
                producer_epoch=3,
                previous_producer_id=previous,
                next_producer_id=following,
                state=state,
                start_ms=900,
                client_transaction_version=client,
            )
            transit = replace(each.unchanged(), previous_producer_id=previous)
            key, value = transaction_record("t", transit, 2)
            assert value is not None
            values.append(value)
    changed = [*values]
    for value in values:
        for place in range(len(value)):
            changed += [
                value[:place] + bytes([byte]) + value[place + 1 :] for byte in (0, 1, 2, 3, 8, 0xFF)
            ]

    def read(value: bytes) -> dict[str, object] | str:
        try:
            found = read_record(key, value)
        except MalformedRecord:
            return "malformed"
        assert found is not None and found.value is not None
        return {name: getattr(found.value, name) for name in found.value.__slots__}

    plain = transaction_log._read_plain
    assert [plain("t", value) is not None for value in values] == [True, True, True, False] * 2
    in_one_step = [read(value) for value in changed]
    monkeypatch.setattr(transaction_log, "_read_plain", lambda *args: None)
    assert in_one_step == [read(value) for value in changed]
    assert "malformed" in in_one_step


def test_a_key_whose_length_says_otherwise() -> None:
    key, value = transaction_record("t", None, 2)
    for wrong in (key[:-1], key + b"x", key[:3], key[:2], key[:4] + b"\xff"):
        with pytest.raises(MalformedRecord):
            read_record(wrong, value)
