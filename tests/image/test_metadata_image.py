"""The image against a naive model, and its deltas against the images they lie between."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.cluster.image_records import image_records
from twisted_broker.cluster.records import decode_record, encode_record, record_version
from twisted_broker.image.metadata_image import EMPTY, TOPIC_RESOURCE, MetadataDelta, MetadataImage
from twisted_broker.wire.messages import metadata_records as records

NAMES = ["a", "b", "c"]


def identity(number: int) -> bytes:
    return bytes(15) + bytes([100 + number])


class Model:
    """The cluster as plain dictionaries, changed in place, one record at a time."""

    def __init__(self) -> None:
        self.topics: dict[bytes, str] = {}
        self.partitions: dict[tuple[bytes, int], dict[str, Any]] = {}
        self.brokers: dict[int, bool] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.made = 0

    def create_topic(self, data: st.DataObject) -> Any:
        free = [name for name in NAMES if name not in self.topics.values()]
        if not free:
            return None
        self.made += 1
        topic_id, name = identity(self.made % 50), data.draw(st.sampled_from(free))
        if topic_id in self.topics:
            return None
        self.topics[topic_id] = name
        return records.TopicRecord(name=name, topic_id=topic_id)

    def create_partition(self, data: st.DataObject) -> Any:
        if not self.topics:
            return None
        topic_id = data.draw(st.sampled_from(sorted(self.topics)))
        number = sum(1 for key in self.partitions if key[0] == topic_id)
        self.partitions[topic_id, number] = {
            "isr": (1, 2),
            "leader": 1,
            "leader_epoch": 0,
            "epoch": 0,
            "elr": (),
        }
        return records.PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=[1, 2],
            isr=[1, 2],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[identity(90), identity(91)],
        )

    def change_partition(self, data: st.DataObject) -> Any:
        if not self.partitions:
            return None
        key = data.draw(st.sampled_from(sorted(self.partitions)))
        known = self.partitions[key]
        change = records.PartitionChangeRecord(partition_id=key[1], topic_id=key[0])
        if data.draw(st.booleans()):
            change.isr = data.draw(st.sampled_from([[], [1], [2], [1, 2]]))
            known["isr"] = tuple(change.isr)
        if data.draw(st.booleans()):
            change.leader = data.draw(st.sampled_from([-1, 1, 2]))
            known["leader"] = change.leader
            known["leader_epoch"] += 1
        if data.draw(st.booleans()):
            change.eligible_leader_replicas = data.draw(st.sampled_from([[], [2]]))
            known["elr"] = tuple(change.eligible_leader_replicas)
        known["epoch"] += 1
        return change

    def remove_topic(self, data: st.DataObject) -> Any:
        if not self.topics:
            return None
        topic_id = data.draw(st.sampled_from(sorted(self.topics)))
        self.configs.pop((TOPIC_RESOURCE, self.topics.pop(topic_id)), None)
        self.partitions = {
            key: value for key, value in self.partitions.items() if key[0] != topic_id
        }
        return records.RemoveTopicRecord(topic_id=topic_id)

    def set_config(self, data: st.DataObject) -> Any:
        if not self.topics:
            return None
        name = data.draw(st.sampled_from(sorted(self.topics.values())))
        setting, value = (
            data.draw(st.sampled_from(["x", "y"])),
            data.draw(st.sampled_from(["1", "2", None])),
        )
        values = self.configs.setdefault((TOPIC_RESOURCE, name), {})
        if value is not None:
            values[setting] = value
        elif setting in values:
            del values[setting]
        else:
            value = values[setting] = "0"
        if not values:
            del self.configs[TOPIC_RESOURCE, name]
        return records.ConfigRecord(
            resource_type=TOPIC_RESOURCE, resource_name=name, name=setting, value=value
        )

    def change_broker(self, data: st.DataObject) -> Any:
        broker = data.draw(st.integers(1, 3))
        if broker not in self.brokers:
            self.brokers[broker] = True
            return records.RegisterBrokerRecord(
                broker_id=broker,
                incarnation_id=identity(80 + broker),
                rack=None,
                log_dirs=[identity(broker)],
            )
        fenced = data.draw(st.booleans())
        self.brokers[broker] = fenced
        return records.BrokerRegistrationChangeRecord(
            broker_id=broker, broker_epoch=0, fenced=1 if fenced else -1
        )

    def set_feature(self, data: st.DataObject) -> Any:
        level = data.draw(st.integers(0, 2))
        self.features = {"f": level} if level else {}
        return records.FeatureLevelRecord(name="f", feature_level=level)

    def check(self, image: MetadataImage) -> None:
        assert {topic.id: topic.name for topic in image.topics_by_name.values()} == self.topics
        assert image.topics_by_id == {topic.id: topic for topic in image.topics_by_name.values()}
        found = {
            (topic.id, number): partition
            for topic in image.topics_by_id.values()
            for number, partition in topic.partitions.items()
        }
        assert found.keys() == self.partitions.keys()
        for key, known in self.partitions.items():
            partition = found[key]
            assert (partition.isr, partition.leader, partition.elr) == (
                known["isr"],
                known["leader"],
                known["elr"],
            )
            assert (partition.leader_epoch, partition.partition_epoch) == (
                known["leader_epoch"],
                known["epoch"],
            )
        assert {node: broker.fenced for node, broker in image.brokers.items()} == self.brokers
        assert image.configs == self.configs
        assert image.features == self.features


KINDS = [
    Model.create_topic,
    Model.create_partition,
    Model.create_partition,
    Model.change_partition,
    Model.change_partition,
    Model.remove_topic,
    Model.set_config,
    Model.change_broker,
    Model.set_feature,
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_image_follows_a_naive_model_batch_by_batch(data: st.DataObject) -> None:
    """RL 8.1: whatever records come, in batches of any size, image and model agree; older images
    stay what they were; deltas tell all.
    """
    model, image = Model(), EMPTY
    history = []
    for batch_number in range(data.draw(st.integers(1, 4))):
        batch = [
            record
            for kind in data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
            if (record := kind(model, data)) is not None
        ]
        before = image
        image, delta = image.apply(batch, batch_number)
        model.check(image)
        check_delta(delta, before, image)
        history.append((before, repr(before)))
    for old, text in history:
        assert repr(old) == text


def test_a_comparison_has_its_topics_in_the_same_order_in_every_process() -> None:
    """Brokers take roles in that order; the hashes of ids are salted."""
    ids = [bytes([255 - number]) * 16 for number in range(64)]
    topics = [records.TopicRecord(name=f"t{each[0]}", topic_id=each) for each in ids]
    partitions = [
        records.PartitionRecord(
            partition_id=number, topic_id=each, replicas=[1], isr=[1], leader=1, leader_epoch=0
        )
        for each in ids
        for number in (1, 0)
    ]
    image, _ = EMPTY.apply([*topics, *partitions], 0)
    found = MetadataDelta.between(EMPTY, image)
    wanted = [(each, number) for each in sorted(ids) for number in (0, 1)]
    assert list(found.partitions) == wanted and list(found.created_topics) == sorted(ids)


def check_delta(delta: MetadataDelta, before: MetadataImage, after: MetadataImage) -> None:
    """A delta made from records holds at least what comparing the images finds, and exactly the
    partitions.
    """
    compared = MetadataDelta.between(before, after)
    assert delta.partitions == compared.partitions
    assert (
        delta.created_topics == compared.created_topics
        and delta.removed_topics == compared.removed_topics
    )
    assert (
        delta.brokers >= compared.brokers
        and delta.configs >= compared.configs
        and delta.features >= compared.features
    )
    rebuilt = {(t.id, n): p for t in before.topics_by_id.values() for n, p in t.partitions.items()}
    for key, change in delta.partitions.items():
        assert rebuilt.pop(key, None) == change.before
        if change.after is not None:
            rebuilt[key] = change.after
    assert rebuilt == {
        (t.id, n): p for t in after.topics_by_id.values() for n, p in t.partitions.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_images_records_make_it_again(data: st.DataObject) -> None:
    """RL 8.1: a snapshot's records, through their bytes, give the same image."""
    model = Model()
    batch = [
        record
        for kind in data.draw(st.lists(st.sampled_from(KINDS), max_size=25))
        if (record := kind(model, data)) is not None
    ]
    image, _ = EMPTY.apply(batch)
    frames = [encode_record(record, record_version(record, 30)) for record in image_records(image)]
    assert EMPTY.apply([decode_record(frame)[0] for frame in frames])[0] == image


def test_an_untouched_topic_is_shared() -> None:
    """Invariant 1 of the image: one change among many copies nothing but what it touches."""
    batch: list[Any] = []
    for number in range(20):
        batch.append(records.TopicRecord(name=f"t{number}", topic_id=identity(number)))
        batch.append(
            records.PartitionRecord(
                partition_id=0,
                topic_id=identity(number),
                replicas=[1],
                isr=[1],
                leader=1,
                directories=[identity(90)],
            )
        )
    image, _ = EMPTY.apply(batch)
    changed, delta = image.apply(
        [records.PartitionChangeRecord(partition_id=0, topic_id=identity(3), leader=-1)]
    )
    assert list(delta.partitions) == [(identity(3), 0)]
    same = [
        name
        for name in image.topics_by_name
        if changed.topics_by_name[name] is image.topics_by_name[name]
    ]
    assert len(same) == 19
    assert changed.brokers is image.brokers and changed.configs is image.configs


def test_clearing_the_elr_of_one_topic_or_of_all() -> None:
    """KIP-966: ClearElr empties the eligible replicas, and the partition's epoch rises."""
    batch = []
    for number, name in enumerate(["x", "y"]):
        batch.append(records.TopicRecord(name=name, topic_id=identity(number)))
        batch.append(
            records.PartitionRecord(
                partition_id=0,
                topic_id=identity(number),
                replicas=[1, 2],
                isr=[1],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[identity(90)] * 2,
                eligible_leader_replicas=[2],
            )
        )
    image, _ = EMPTY.apply(batch)
    one, _ = image.apply([records.ClearElrRecord(topic_name="x")])
    assert (
        one.topics_by_name["x"].partitions[0].elr == ()
        and one.topics_by_name["x"].partitions[0].partition_epoch == 1
    )
    assert one.topics_by_name["y"].partitions[0].elr == (2,)
    both, _ = image.apply([records.ClearElrRecord(topic_name="")])
    assert [topic.partitions[0].elr for topic in both.topics_by_name.values()] == [(), ()]


def test_a_topic_deleted_and_made_anew_in_one_batch() -> None:
    """RL 1.3: under the same name another id; the delta tells of both."""
    image, _ = EMPTY.apply([records.TopicRecord(name="x", topic_id=identity(1))])
    after, delta = image.apply(
        [
            records.RemoveTopicRecord(topic_id=identity(1)),
            records.TopicRecord(name="x", topic_id=identity(2)),
        ]
    )
    assert after.topics_by_name["x"].id == identity(2) and identity(1) not in after.topics_by_id
    assert set(delta.removed_topics) == {identity(1)} and set(delta.created_topics) == {identity(2)}


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_a_delta_in_pieces_is_the_same_delta(size: int, kept: int, gone: int) -> None:
    """Every change is in exactly one piece, what goes comes first, no piece has more than
    `size`.
    """
    topics = [
        records.TopicRecord(name=name, topic_id=identity(number))
        for number, name in enumerate(NAMES[:2])
    ]
    partitions = [
        records.PartitionRecord(
            partition_id=number,
            topic_id=identity(topic),
            replicas=[1],
            isr=[1],
            leader=1,
            directories=[identity(90)],
        )
        for topic, count in ((0, gone), (1, kept))
        for number in range(count)
    ]
    before, _ = EMPTY.apply([topics[0], *partitions[:gone]])
    _, delta = before.apply(
        [records.RemoveTopicRecord(topic_id=identity(0)), topics[1], *partitions[gone:]]
    )
    pieces = list(delta.pieces(size))
    found = [key for piece in pieces for key in piece.partitions]
    assert sorted(found) == sorted(delta.partitions) and len(found) == gone + kept
    assert all(len(piece.partitions) <= size for piece in pieces)
    if len(pieces) > 1:
        assert [
            change.after is None for piece in pieces for change in piece.partitions.values()
        ] == [True] * gone + [False] * kept
    assert (
        pieces[0].removed_topics == delta.removed_topics
        and pieces[0].created_topics == delta.created_topics
    )
    assert all((piece.before, piece.after) == (delta.before, delta.after) for piece in pieces)
