"""A scrape: in pieces, once for all who wait, whole for a slow reader, true of what there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory
from twisted.internet.task import Clock

from tests.memory_broker import MemoryBroker
from tests.status.looking import Asking, Looking
from tests.status.published_dashboards import samples_of
from tests.test_broker import create, produce
from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_offsets import MANY_OFFSETS
from twisted_broker.coordinator.group_records import CommittedOffset
from twisted_broker.image.entries import TopicImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.status import group_metrics, local_state
from twisted_broker.status.group_metrics import OFFSETS_PER_PIECE
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import MOST_SOFTWARE, BrokerCollector
from twisted_broker.status.metrics_resource import Sender
from twisted_broker.status.partition_metrics import PARTITIONS_PER_PIECE
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.messages import offsets
from twisted_broker.wire.messages.topics import DeleteTopicsRequest


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker(offsets_topic_num_partitions="1").start()
    yield made
    made.stop()


def test_a_piece_looks_at_a_few_partitions(broker: MemoryBroker) -> None:
    """Issue 12: 10,000 partitions hold nobody up: a piece is `PARTITIONS_PER_PIECE` of them."""
    create(broker, "many", 4 * PARTITIONS_PER_PIECE)
    broker.pass_time(5)
    parts = broker.broker.parts
    out = Exposition()
    sizes = out.family("kafka_log_log_size", "gauge", "")
    pieces = BrokerCollector(BrokerView(lambda: parts)).collect(out)
    looked = ["".join(sizes.lines).count("\n") for _ in pieces]
    grown = [after - before for before, after in pairwise(looked)]
    assert looked[-1] == 4 * PARTITIONS_PER_PIECE and max(grown) == PARTITIONS_PER_PIECE


def test_who_comes_meanwhile_gets_the_same(broker: MemoryBroker) -> None:
    """One scrape for both; the next one is a new one."""
    create(broker, "many", 4 * PARTITIONS_PER_PIECE)
    broker.pass_time(5)
    looking = Looking(broker)
    calls: list[object] = []
    resource: Any = None

    def count(out: Exposition) -> None:
        calls.append(out)

    looking.get("/")  # loads the site
    resource = looking.port._factory._site.resource
    resource._scrapes._collector._process = count
    first, second = (looking.ask("/metrics", more="Connection: close\r\n") for _ in range(2))
    one, two = broker.run(first), broker.run(second)
    assert one.partition(b"\r\n\r\n")[2] == two.partition(b"\r\n\r\n")[2] != b""
    assert len(calls) == 1
    looking.get("/metrics")
    assert len(calls) == 2


def test_a_failure_is_500_and_ends_the_scrape(broker: MemoryBroker) -> None:
    """Nobody waits for ever, and the next one is answered."""
    looking = Looking(broker)
    looking.get("/")
    scrapes: Any = looking.port._factory._site.resource._scrapes

    def fail(out: Exposition) -> None:
        raise ZeroDivisionError

    before, scrapes._collector._process = scrapes._collector._process, fail
    assert looking.get("/metrics")[0] == 500
    scrapes._collector._process = before
    assert looking.get("/metrics")[0] == 200


class SlowRequest:
    """Takes two pieces at a time, then is full until the test says otherwise."""

    method = b"GET"

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.producer: Any = None
        self.ended = False

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, piece: bytes) -> None:
        self.taken.append(piece)
        if len(self.taken) % 2 == 0:
            self.producer.pauseProducing()

    def finish(self) -> None:
        self.ended = True


def test_a_reader_that_pauses_gets_all_of_it() -> None:
    """The text waits here, nothing of it is lost; a piece in each turn."""
    clock, request = Clock(), SlowRequest()
    pieces = [b"a", b"b", b"c", b"d", b"e"]
    Sender(request, pieces, clock).send()
    assert request.taken == [b"a"]
    for count in (2, 4):
        clock.pump([1] * 5)
        assert request.taken == pieces[:count] and not request.ended
        for _ in range(3):
            request.producer.resumeProducing()
    clock.pump([1] * 5)
    assert request.taken == pieces and request.ended and request.producer is None
    assert clock.getDelayedCalls() == []


def test_a_reader_that_leaves_gets_no_more() -> None:
    """Whether it is full or not; its text goes."""
    for pieces in ([b"a", b"b", b"c"], [b"a", b"b", b"c", b"d", b"e"]):
        clock, request = Clock(), SlowRequest()
        sender = Sender(request, pieces, clock)
        sender.send()
        sender.stopProducing()
        clock.pump([1] * 5)
        assert request.taken == [b"a"] and not request.ended


def test_a_deleted_topic_has_no_series(broker: MemoryBroker) -> None:
    """What was counted for it stays in the totals."""
    create(broker, "gone")
    produce(broker, "gone", b"a", b"b")
    looking = Looking(broker)
    assert any('topic="gone"' in name for name in looking.numbers())
    broker.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=10_000), 5)
    broker.pass_time(2)
    found = looking.numbers()
    assert not any('topic="gone"' in name for name in found)
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 2


def test_a_groups_lag(broker: MemoryBroker) -> None:
    """kafka_exporter's names: up to the high watermark, never below 0, by partition and topic; of
    a partition that is not held here only the offset.
    """
    broker.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    broker.pass_time(2)
    create(broker, "t", 2)
    produce(broker, "t", b"a", b"b", b"c")
    committed = [
        offsets.OffsetCommitRequestPartition(partition_index=at, committed_offset=offset)
        for at, offset in ((0, 1), (1, 0))
    ]
    topic = offsets.OffsetCommitRequestTopic(name="t", partitions=committed)
    broker.ask(offsets.OffsetCommitRequest(group_id='g"\n', topics=[topic]), 7)
    looking = Looking(broker)

    def of(name: str) -> dict[str, float]:
        found = samples_of(looking.get("/metrics")[2]).get(name, [])
        assert all(each.labels["consumergroup"] == 'g"\n' for each in found)
        return {each.labels.get("partition", ""): each.value for each in found}

    assert of("kafka_consumergroup_lag") == {"0": 2, "1": 0}
    assert of("kafka_consumergroup_current_offset") == {"0": 1, "1": 0}
    assert of("kafka_consumergroup_lag_sum") == {"": 2}
    assert of("kafka_consumergroup_current_offset_sum") == {"": 1}
    assert of("kafka_consumergroup_members") == {"": 0}
    partition = broker.broker.parts.replica_manager.partitions.pop(TopicPartition("t", 0))
    assert of("kafka_consumergroup_lag") == {"1": 0}
    broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)] = partition
    counts = looking.numbers()
    prefix = "kafka_coordinator_group_groupmetadatamanager_num"
    assert [counts[prefix + name] for name in ("groups", "groupsempty", "offsets")] == [1, 1, 2]


def test_offsets_beyond_the_bound_are_counted(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twisted_broker.status.group_metrics.MOST_SERIES", 3)
    monkeypatch.setattr("twisted_broker.status.group_metrics.MOST_OFFSETS", 2)
    broker.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    broker.pass_time(2)
    create(broker, "t", 4)
    for group in ("g", "h"):
        committed = [
            offsets.OffsetCommitRequestPartition(partition_index=at, committed_offset=0)
            for at in range(4)
        ]
        topic = offsets.OffsetCommitRequestTopic(name="t", partitions=committed)
        broker.ask(offsets.OffsetCommitRequest(group_id=group, topics=[topic]), 7)
    found = Looking(broker).numbers()
    shown = [name for name in found if name.startswith("kafka_consumergroup_current_offset{")]
    assert len(shown) == 3 and found["replog_metrics_omitted_offsets"] == 5


@pytest.mark.parametrize("what", ["the row of a page", "the series of a scrape"])
def test_a_piece_looks_at_a_few_of_very_many_offsets(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """They are in buckets: all of a million in one piece would hold the reactor for a second."""
    entry = GroupEntry(ClassicGroup("g", 0))
    for number in range(MANY_OFFSETS):
        entry.offsets.put(("t", number), CommittedOffset(number))
    assert isinstance(entry.offsets.committed, BucketDict)
    looked = [0]

    def count(self: BucketDict[Any, Any], key: Any, look: Any = BucketDict._bucket) -> Any:
        looked[-1] += 1
        return look(self, key)

    # Each way to look a key up goes by one of these.
    monkeypatch.setattr(BucketDict, "_bucket", count)
    monkeypatch.setattr(BucketDict, "get", lambda self, key: count(self, key).get(key))
    replicas = SimpleNamespace(partitions={})
    if what == "the row of a page":
        pieces: Iterator[None] = local_state._group_row("g", entry, replicas, None)
    else:
        pieces = group_metrics._Series(Exposition(), replicas.partitions).add("g", entry)
    while next(pieces, "the end") is None:
        looked.append(0)
    assert sum(looked) == MANY_OFFSETS and max(looked) <= OFFSETS_PER_PIECE


def connect(broker: MemoryBroker) -> None:
    """One more client, which says nothing."""
    client: Any = ClientFactory()
    client.noisy = False
    client.buildProtocol = lambda _: Asking(b"", Deferred())
    broker.run(broker.network.connect("127.0.0.1", 9092, client, 10))


def test_what_clients_call_themselves_is_bounded(broker: MemoryBroker) -> None:
    """Each of a thousand names of software would be a series for ever in Prometheus."""
    factory = next(each for each in broker.broker.parts.listening if not each.on_controller)
    for number in range(MOST_SOFTWARE + 5):
        connect(broker)
        list(factory.connections)[-1].client_software = (f"client-{number}", "1")
    rows = samples_of(Looking(broker).get("/metrics")[2])[
        "kafka_server_socketservermetrics_connections"
    ]
    own = [each for each in rows if each.labels["listener"] == "PLAINTEXT"]
    assert sum(each.value for each in own) == MOST_SOFTWARE + 5 and len(rows) <= MOST_SOFTWARE + 2
    assert any(each.labels["client_software_name"] == "other" for each in own)


def test_the_controller_counts_the_clusters_partitions(broker: MemoryBroker) -> None:
    """Those without a leader, and those that another than the preferred one leads; the walk is
    made once for an image.
    """
    create(broker, "t", 3)
    collector = BrokerCollector(BrokerView(lambda: broker.broker.parts))
    controller = broker.broker.parts.controller
    image = controller.committed
    topic = image.topics_by_name["t"]
    numbers = dict(topic.partitions)
    numbers[0] = numbers[0]._replace(leader=-1)
    numbers[1] = numbers[1]._replace(replicas=(2, 1))
    changed = TopicImage(topic.name, topic.id, numbers)
    controller.committed = replace(
        image, topics_by_name={"t": changed}, topics_by_id={topic.id: changed}
    )

    def numbers_now() -> dict[str, float]:
        out = Exposition()
        for _ in collector.collect(out):
            pass
        found = samples_of(b"".join(out.text()).decode())
        return {name: rows[0].value for name, rows in found.items()}

    found = numbers_now()
    prefix = "kafka_controller_kafkacontroller_"
    counts = [
        found[prefix + name]
        for name in (
            "globaltopiccount",
            "globalpartitioncount",
            "offlinepartitionscount",
            "preferredreplicaimbalancecount",
            "activecontrollercount",
            "activebrokercount",
            "fencedbrokercount",
        )
    ]
    assert counts == [1, 3, 1, 2, 1, 1, 0]
    walked = collector._counts
    walked.partitions = 99
    assert numbers_now()[prefix + "globalpartitioncount"] == 99, "not walked again"
    controller.committed = image
    assert numbers_now()[prefix + "globalpartitioncount"] == 3
