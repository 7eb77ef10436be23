"""What an observer makes of the batches it reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.cluster.metadata_check import LogEnd
from twisted_broker.cluster.metadata_loader import MetadataLoader, MetadataRegression
from twisted_broker.cluster.records import build_batch
from twisted_broker.cluster.snapshots import SnapshotId, snapshot_bytes
from twisted_broker.image.metadata_image import EMPTY, RECORDS_PER_STEP, MetadataImage
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.records import BatchBuilder, CorruptRecordError
from twisted_broker.wire.schema import Record


def topic(number: int) -> records.TopicRecord:
    return records.TopicRecord(name=f"t{number}", topic_id=bytes(14) + b"\x01" + bytes([number]))


def batch(offset: int, *found: Record, epoch: int = 1) -> bytes:
    return build_batch(found, offset, epoch, 1000 + offset, 30)


def names(loader: MetadataLoader) -> list[str]:
    return sorted(loader.image.topics_by_name)


def test_nothing_above_the_high_watermark_is_applied() -> None:
    """RL 8.2: batches come up to the log end; they count when the high watermark has passed
    them.
    """
    loader = MetadataLoader()
    assert loader.batches(batch(0, topic(0)) + batch(1, topic(1), topic(2)), 2) is not None
    assert names(loader) == ["t0"] and loader.fetch_offset == 3
    assert loader.advance(2) is None
    delta = loader.advance(3)
    assert delta is not None and len(delta.created_topics) == 2
    assert names(loader) == ["t0", "t1", "t2"] and loader.image.offset == 2


def test_many_records_are_decoded_in_steps_and_applied_in_steps() -> None:
    """The outcome is that of one step; nothing shows before the last one."""
    found = [records.NoOpRecord(), topic(0)] * RECORDS_PER_STEP
    data = batch(0, *found) + batch(len(found), topic(1))
    loader, at_once = MetadataLoader(), MetadataLoader()
    steps = loader.batches_in_steps(data, len(found) + 1)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            delta = end.value
            break
        pauses += 1
        assert loader.image is EMPTY
    assert pauses == 5 and delta is not None  # two for each thousand records, one in between
    assert at_once.batches(data, len(found) + 1) is not None
    assert names(loader) == names(at_once) == ["t0", "t1"]
    assert loader.image.offset == at_once.image.offset == len(found)


def test_what_records_removed_is_noted_until_somebody_takes_it() -> None:
    """Also within one answer, and before the own copy's end; not above the high watermark."""
    gone = topic(0)
    removal = records.RemoveTopicRecord(topic_id=gone.topic_id)
    loader = MetadataLoader()
    loader.batches(batch(0, gone) + batch(1, removal), 1)
    assert loader.removals is not None
    assert not loader.removals.has(gone.topic_id, 0, 1, EMPTY)
    assert loader.advance(2) is not None
    assert loader.removals.has(gone.topic_id, 0, 1, loader.image)
    loader.removals = None
    other = topic(1)
    removal = records.RemoveTopicRecord(topic_id=other.topic_id)
    loader.batches(batch(2, other) + batch(3, removal), 4)
    assert loader.removals is None and names(loader) == []


def test_a_transaction_counts_when_it_has_ended() -> None:
    """RL 8.1: its records are held back over batches; the offset moves on."""
    loader = MetadataLoader()
    loader.batches(batch(0, records.BeginTransactionRecord(name="x"), topic(0)), 2)
    assert names(loader) == [] and loader.image.offset == 1
    delta = loader.batches(batch(2, records.EndTransactionRecord()), 3)
    assert names(loader) == ["t0"] and delta is not None and len(delta.created_topics) == 1


def test_what_was_read_already_is_passed_over() -> None:
    """A batch that begins below the asked offset (the server reads whole batches) is not applied
    twice.
    """
    loader = MetadataLoader()
    loader.batches(batch(0, topic(0)), 1)
    loader.batches(batch(0, topic(0)) + batch(1, topic(1)), 2)
    assert names(loader) == ["t0", "t1"]


def test_a_record_that_is_not_known_is_an_error() -> None:
    """KRAFT 3.3: it stops us; damaged bytes are another matter: they can be asked for again."""
    builder = BatchBuilder(leader_epoch=1)
    builder.append(0, None, b"\x01\x63\x00")
    with pytest.raises(WireError):
        MetadataLoader().batches(builder.build(), 1)
    damaged = bytearray(batch(0, topic(0)))
    damaged[-1] ^= 1
    loader = MetadataLoader()
    with pytest.raises(CorruptRecordError):
        loader.batches(bytes(damaged), 1)
    assert loader.fetch_offset == 0


def image_of_topics(*numbers: int, offset: int = 9) -> MetadataImage:
    return EMPTY.apply(
        [
            records.FeatureLevelRecord(name="metadata.version", feature_level=30),
            *map(topic, numbers),
        ],
        offset,
        1,
        500,
    )[0]


def test_a_snapshot_takes_the_place_of_the_log() -> None:
    """RL 8.2: the delta is what differs from the image published before."""
    loader = MetadataLoader()
    loader.batches(batch(0, topic(0)) + batch(1, topic(1)), 2)
    delta = loader.snapshot(b"".join(snapshot_bytes(image_of_topics(1, 2), 0)), SnapshotId(10, 1))
    assert delta is not None
    assert {each.name for each in delta.created_topics.values()} == {"t2"}
    assert {each.name for each in delta.removed_topics.values()} == {"t0"}
    assert (loader.fetch_offset, loader.last_epoch, names(loader)) == (10, 1, ["t1", "t2"])


def test_a_batch_that_a_snapshot_ends_within_counts_from_there() -> None:
    """Snapshots of old controllers may: a change of leader that is applied twice would give an
    epoch that nobody leads.
    """
    placed = records.PartitionRecord(
        partition_id=0, topic_id=topic(0).topic_id, replicas=[1, 2], isr=[1, 2], leader=1
    )
    change = records.PartitionChangeRecord(partition_id=0, topic_id=topic(0).topic_id, leader=2)
    level = records.FeatureLevelRecord(name="metadata.version", feature_level=30)
    whole = MetadataLoader()
    first, second = batch(0, level, topic(0), placed), batch(3, change, topic(1), topic(2))
    whole.batches(first + second + batch(6, topic(3)), 7)
    within = MetadataLoader()
    within.batches(first, 3)
    image = within.image.apply([change], 3, 1, 1000)[0]
    within.snapshot(b"".join(snapshot_bytes(image, 0)), SnapshotId(4, 1))
    within.batches(second + batch(6, topic(3)), 7)
    assert within.image.topics_by_id == whole.image.topics_by_id
    within.compare_last()
    assert within.fetch_offset == 6
    within.snapshot(b"".join(snapshot_bytes(image, 0)), SnapshotId(4, 1))
    within.batches(second, 6)
    within.compare_last()
    assert within.fetch_offset == 6, "a leader that has only the snapshot could not give it again"


def test_divergence_above_what_was_applied_drops_only_that() -> None:
    """KRAFT 3.2: truncated above the high watermark."""
    loader = MetadataLoader()
    loader.batches(batch(0, topic(0)) + batch(1, topic(1)) + batch(2, topic(2)), 1)
    loader.diverged(1, 2)
    assert loader.fetch_offset == 2
    loader.batches(batch(2, topic(5), epoch=2), 3)
    assert names(loader) == ["t0", "t1", "t5"] and loader.last_epoch == 2


def test_divergence_below_what_was_applied_is_a_regression() -> None:
    """Invariant 4: Kafka truncates nothing below the high watermark; the image stays, both
    places are named.
    """
    loader = MetadataLoader()
    loader.batches(batch(0, topic(0)) + batch(1, topic(1)) + batch(2, topic(2)), 3)
    with pytest.raises(
        MetadataRegression,
        match=r"up to offset 3 of epoch 1, the controller's goes to offset 1 of epoch 1",
    ):
        loader.diverged(1, 1)
    assert names(loader) == ["t0", "t1", "t2"] and loader.fetch_offset == 3


def test_a_snapshot_of_the_past_is_a_regression() -> None:
    """Invariant 4: a leader offers a snapshot only where it has cut its log, and that lies above
    everything committed.
    """
    loader = MetadataLoader()
    loader.batches(
        batch(0, topic(0)) + batch(1, topic(1), epoch=2) + batch(2, topic(2), epoch=2), 3
    )
    for snapshot in (SnapshotId(2, 2), SnapshotId(9, 1)):
        with pytest.raises(MetadataRegression):
            loader.wants(snapshot)
    assert loader.wants(SnapshotId(3, 2)) and loader.wants(SnapshotId(9, 3))


def test_the_last_batch_is_compared_on_a_new_connection() -> None:
    """Invariant 4: another log may have the same offsets and epochs; the batch that was applied
    last tells.
    """
    loader = MetadataLoader()
    log = [batch(0, topic(0)), batch(1, topic(1)), batch(2, topic(2)), batch(3, topic(3))]
    loader.batches(b"".join(log[:3]), 3)
    loader.compare_last()
    assert (loader.fetch_offset, loader.last_epoch) == (2, 1)
    loader.batches(log[2] + log[3], 4)
    assert names(loader) == ["t0", "t1", "t2", "t3"]
    loader.compare_last()
    with pytest.raises(MetadataRegression, match="has another batch at offset 3") as caught:
        loader.batches(batch(3, topic(7)) + batch(4, topic(8)), 5)
    assert caught.value.found == caught.value.applied == LogEnd(4, 1)
    assert names(loader) == ["t0", "t1", "t2", "t3"]


def test_where_the_last_batch_is_cut_off_reading_goes_on_behind_it() -> None:
    """A leader that has cut its log behind a snapshot cannot show the batch; the log behind it
    is still fetched, not the snapshot.
    """
    loader = MetadataLoader()
    loader.batches(batch(0, topic(0)) + batch(1, topic(1)), 2)
    loader.compare_last()
    assert not loader.wants(SnapshotId(2, 1))
    assert loader.fetch_offset == 2
    loader.batches(batch(2, topic(2)), 3)
    assert names(loader) == ["t0", "t1", "t2"]


def test_committed_batches_are_handed_on_byte_for_byte() -> None:
    """Invariant 5: the copy gets what is below the high watermark, nothing above it."""
    taken: list[bytes] = []
    loader = MetadataLoader(on_committed=taken.append)
    log = [batch(0, topic(0)), batch(1, topic(1), topic(2)), batch(3, topic(3))]
    loader.batches(b"".join(log), 3)
    assert taken == [log[0] + log[1]]
    loader.advance(4)
    assert taken[1:] == [log[2]]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_however_it_is_cut_the_image_is_the_same(sizes: list[int], data: st.DataObject) -> None:
    """RL 8.2: answers cut anywhere between batches, with any high watermarks, end in one image;
    deltas chain.
    """
    batches, offset = [], 0
    for size in sizes:
        batches.append(batch(offset, *(topic(offset + i) for i in range(size))))
        offset += size
    loader, position, published = MetadataLoader(), 0, EMPTY
    while position < len(batches):
        take = data.draw(st.integers(1, len(batches) - position))
        delta = loader.batches(
            b"".join(batches[position : position + take]), data.draw(st.integers(0, offset))
        )
        position += take
        if delta is not None:
            assert delta.before is published
            published = delta.after
    loader.advance(offset)
    assert len(names(loader)) == offset and loader.image.offset == offset - 1


def test_the_past_is_not_news() -> None:
    """RL 8.2: until the first catch-up nothing is published; then one delta from nothing to now, in
    which a topic that was deleted and made anew, over several answers, is only what it is now.
    """
    loader = MetadataLoader()
    old = records.TopicRecord(name="t", topic_id=b"o" * 16)
    new = records.TopicRecord(name="t", topic_id=b"n" * 16)
    assert loader.batches(batch(0, old), 3) is None
    assert loader.image is EMPTY
    assert loader.batches(batch(1, records.RemoveTopicRecord(topic_id=b"o" * 16)), 3) is None
    delta = loader.batches(batch(2, new), 3)
    assert delta is not None and delta.before is EMPTY
    assert (list(delta.created_topics), list(delta.removed_topics)) == ([b"n" * 16], [])
    delta = loader.batches(batch(3, topic(1)), 9)
    assert delta is not None and names(loader) == ["t", "t1"]


def test_a_catch_up_ends_where_the_leader_was_at_its_first_answer() -> None:
    """RL 8.2: its log grows by more than one answer brings, each time (seed 1031171)."""
    loader = MetadataLoader()
    assert loader.advance(-1) is None  # it has not committed in its epoch
    assert loader.batches(batch(0, topic(0)), 2) is None
    delta = loader.batches(batch(1, topic(1)), 4)
    assert delta is not None and delta.before is EMPTY and names(loader) == ["t0", "t1"]


def test_a_hole_in_an_answer_is_damage() -> None:
    """Offsets of the metadata log have no holes: a picture with one would be worse than none."""
    loader = MetadataLoader()
    with pytest.raises(CorruptRecordError, match="a batch of offset 2 where 1 comes next"):
        loader.batches(batch(0, topic(0)) + batch(2, topic(2)), 3)
    loader.batches(batch(1, topic(1)), 2)
    assert names(loader) == ["t0", "t1"]


def test_a_batch_that_is_cut_short_is_read_again() -> None:
    """An answer may end in the middle of a batch: reading goes on at that batch.

    One that holds no whole batch is damage, never a busy loop.
    """
    loader = MetadataLoader()
    second = batch(1, topic(1))
    loader.batches(batch(0, topic(0)) + second[:-1], 2)
    assert loader.fetch_offset == 1
    with pytest.raises(CorruptRecordError):
        loader.batches(second[:-1], 2)
    loader.batches(second, 2)
    assert names(loader) == ["t0", "t1"]
