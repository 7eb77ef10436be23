"""What `kafka_server.py` promises: a node starts, serves, stops and starts again; entirely in
memory, on a clock of the test.
"""

from __future__ import annotations

from errno import EIO, EMFILE, ENFILE
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError

from tests.memory_broker import MemoryBroker
from twisted_broker.api import produce as produce_module
from twisted_broker.api.routes import routes_for
from twisted_broker.cluster.controller import Controller
from twisted_broker.log import log as log_module
from twisted_broker.log import write_ahead
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.log.segment_file import SegmentFile
from twisted_broker.replication import role_change
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
from twisted_broker.settings import ConfigError
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.memory_network import MemoryPort
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest
from twisted_broker.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.metadata_records import ConfigRecord
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.records import BatchBuilder, iterate_batches

CLEAN = "/data/.kafka_cleanshutdown"


def batch(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(1_700_000_000_000, None, value)
    return builder.build()


def create(broker: MemoryBroker, topic: str, partitions: int = 1) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)],
        timeout_ms=1000,
    )
    answer = broker.ask(request, 7, port=9093)
    assert answer.topics[0].error_code == 0, answer
    broker.pass_time(0.1)


def produce(broker: MemoryBroker, topic: str, *values: bytes, acks: int = -1) -> int:
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=0, records=batch(*values))]
    )
    answer = broker.ask(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data]), 7)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == 0, answer
    offset: int = partition.base_offset
    return offset


def fetch(broker: MemoryBroker, topic: str, offset: int = 0) -> list[bytes | None]:
    asked = FetchTopic(
        topic=topic,
        partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
    )
    answer = broker.ask(
        FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[asked]), 11
    )
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0, answer
    return [
        record.value
        for found in iterate_batches(partition.records or b"")
        for record in found.records(1 << 20)
    ]


def test_a_lone_broker_serves_and_comes_back_with_everything() -> None:
    """Created topics and produced records survive a clean stop, whose mark is left and taken;
    the second start is the same cluster.
    """
    first = MemoryBroker().start()
    create(first, "t")
    assert produce(first, "t", b"a", b"b") == 0
    assert produce(first, "t", b"c") == 2
    assert fetch(first, "t") == [b"a", b"b", b"c"]
    first.stop()
    assert first.files.exists(CLEAN) and not first.fatal
    second = MemoryBroker(first.files).start()
    assert not second.files.exists(CLEAN)
    assert second.broker.cluster_id == first.broker.cluster_id
    assert fetch(second, "t", 1)[-2:] == [b"b", b"c"]
    assert produce(second, "t", b"d") == 3
    second.stop()


def test_a_stop_leaves_no_timer_and_no_port() -> None:
    """Nothing of a stopped broker goes on: a test suite can start hundreds."""
    broker = MemoryBroker().start()
    create(broker, "t")
    produce(broker, "t", b"a")
    broker.stop()
    broker.pass_time(5)
    assert not broker.network.ports
    assert [str(call) for call in broker.clock.getDelayedCalls()] == []


def test_a_lone_broker_stops_within_two_seconds() -> None:
    """Nobody can take its leaders over: the controller lets it go at once."""
    broker = MemoryBroker().start()
    create(broker, "t")
    before = broker.clock.seconds()
    broker.stop()
    assert broker.clock.seconds() - before < 2


def test_parked_clients_do_not_hold_up_a_stop() -> None:
    """A fetch that waits for data is answered or closed when the broker stops."""
    broker = MemoryBroker().start()
    create(broker, "t")
    connection = broker.connection()
    asked = FetchTopic(
        topic="t",
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    ended: list[object] = []
    connection.send(
        FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, topics=[asked]), 11
    ).addBoth(ended.append)
    broker.pass_time(1)
    assert not ended
    before = broker.clock.seconds()
    broker.stop()
    broker.pass_time(0.1)
    assert ended and broker.clock.seconds() - before < 2


def test_each_listener_lists_its_own_apis() -> None:
    """ApiVersions on the broker's listener has Produce, on the controller's BrokerRegistration;
    features are those of the cluster.
    """
    broker = MemoryBroker().start()
    for port, is_controller in ((9092, False), (9093, True)):
        answer = broker.ask(
            ApiVersionsRequest(client_software_name="test", client_software_version="1"),
            4,
            port=port,
        )
        assert {key.api_key for key in answer.api_keys} == set(routes_for(is_controller))
        assert any(feature.name == "metadata.version" for feature in answer.finalized_features)
    broker.stop()


def test_directories_are_formatted_on_first_use() -> None:
    """Cluster id, node id and directory id are written once and kept."""
    broker = MemoryBroker(cluster_id="AAAAAAAAAAAAAAAAAAAAAA", node_id="5").start()
    properties = read_meta_properties(broker.files, "/data")
    assert properties is not None and (properties.cluster_id, properties.node_id) == (
        "AAAAAAAAAAAAAAAAAAAAAA",
        5,
    )
    broker.stop()
    again = MemoryBroker(broker.files, node_id="5").start()
    assert read_meta_properties(again.files, "/data") == properties
    again.stop()


def test_another_clusters_or_nodes_directory_is_refused() -> None:
    """One line says whose it is; nothing is touched."""
    broker = MemoryBroker().start()
    broker.stop()
    with pytest.raises(LogDirMismatch, match="belongs to cluster"):
        MemoryBroker(broker.files, cluster_id="BAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(LogDirMismatch, match="node 1"):
        MemoryBroker(broker.files, node_id="2").start()


def test_a_refused_start_writes_nothing_to_the_directory() -> None:
    """A directory in use by another process stays as it is: above all without the mark of a
    clean stop.
    """
    broker = MemoryBroker().start()
    create(broker, "t")
    produce(broker, "t", b"a")
    before = contents(broker)
    with pytest.raises(LogDirMismatch, match="in use"):
        MemoryBroker(
            broker.files, listeners="PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
        ).start()
    assert contents(broker) == before and not broker.files.exists(CLEAN)
    broker.stop()


def contents(broker: MemoryBroker) -> dict[str, bytes]:
    files = broker.files
    paths = [f"/data/{name}" for name in files.listdir("/data")]
    paths += [
        f"{path}/{name}"
        for path in paths
        if files.is_directory(path)
        for name in files.listdir(path)
    ]
    return {
        path: files.open(path).read_at(0, files.size(path))
        for path in paths
        if not files.is_directory(path)
    }


def test_high_watermarks_that_cannot_be_written_end_the_log_directory() -> None:
    """RL 1.12: a failed checkpoint is a failed directory, for the broker and the controller, not
    only for the partitions in it.
    """
    disk = SimDisk()
    broker = MemoryBroker(disk).start()
    create(broker, "t")
    produce(broker, "t", b"a")
    disk.faults.append(Fault(EIO, "rename", "replication-offset-checkpoint", times=1))
    broker.pass_time(6)
    assert broker.broker.log_manager.directories.offline() == ["/data"]
    assert any("all log directories are offline" in reason for reason in broker.fatal)
    broker.stop()


def test_a_stop_goes_on_when_no_controller_lets_the_broker_go() -> None:
    """The wait for a controlled shutdown is bounded: after it the ports are closed all the same."""
    broker = MemoryBroker().start()
    create(broker, "t")
    channel: Any = broker.broker.broker_server.lifecycle._channel
    channel.send_once = lambda request, version: Deferred()
    began = broker.clock.seconds()
    broker.stop()
    assert 9 < broker.clock.seconds() - began < 30
    assert ("127.0.0.1", 9092) not in broker.network.ports
    assert any(path.endswith("replication-offset-checkpoint") for path in contents(broker)), (
        "the replica manager was shut down too"
    )


def test_a_stop_does_not_wait_for_a_controller_of_its_own_whose_disk_failed() -> None:
    """RL 8.1: it never decides again; that is why the process ends, and nothing is gained by
    waiting.
    """
    disk = SimDisk()
    broker = MemoryBroker(disk).start()
    create(broker, "t")
    disk.faults.append(Fault(EIO, "sync", "__cluster_metadata-0"))
    broker.pass_time(2)
    assert any("the metadata log failed" in reason for reason in broker.fatal)
    began = broker.clock.seconds()
    broker.stop()
    assert broker.clock.seconds() - began < 5


def test_a_port_in_use_gives_everything_back() -> None:
    """The start fails by the setting's name, and the directory is free for the next try."""
    broker = MemoryBroker()
    broker.network.listen("127.0.0.1", 9092, None)
    with pytest.raises(
        CannotListenError,
        match=r"^listeners: PLAINTEXT://127\.0\.0\.1:9092 .*a free port",
    ):
        broker.start()
    again = MemoryBroker(broker.files).start()
    again.stop()


def test_listeners_are_checked_before_anything_is_opened() -> None:
    """A broker needs a listener of its own, the controller one of its names, and nobody is told
    0.0.0.0.
    """
    for listeners in (
        "CONTROLLER://:9093",
        "PLAINTEXT://:9092",
        "PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093",
        "what",
        "A://h:1,A://h:2",
    ):
        with pytest.raises(ConfigError, match="listeners"):
            MemoryBroker(listeners=listeners)


@pytest.mark.parametrize("early", [None, "PLAINTEXT"])
def test_when_a_controllers_listener_accepts_connections(
    early: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-801: before the metadata, and so the ACLs, are there, unless `early.start.listeners`
    leaves it out; a broker's only when it is let in.
    """
    events: list[str] = []
    for name in ("stopReading", "startReading"):

        def noted(port: MemoryPort, name: str = name) -> None:
            events.append(f"{name} {port.getHost().port}")

        monkeypatch.setattr(MemoryPort, name, noted, raising=False)
    start = Controller.start

    async def started(self: Controller, *arguments: Any) -> None:
        await start(self, *arguments)
        events.append("loaded")

    monkeypatch.setattr(Controller, "start", started)
    broker = MemoryBroker(**{} if early is None else {"early_start_listeners": early}).start()
    order = ["loaded", "stopReading 9092"]
    if early:
        order = ["stopReading 9093", "loaded", "startReading 9093", "stopReading 9092"]
    assert events[: len(order)] == order and events[-1].startswith("startReading")
    broker.stop()


def test_the_last_directory_gone_is_the_end() -> None:
    """Without a log directory a broker stops, as Kafka's does."""
    broker = MemoryBroker().start()
    broker.broker.log_manager.directories.fail("/data", OSError(5, "broken"))
    assert broker.fatal and "broken" in broker.fatal[0]
    began = broker.clock.seconds()
    broker.stop()
    assert broker.clock.seconds() - began < 5, "the controller lets it go at once"


def test_connections_leave_descriptors_to_the_logs() -> None:
    """Above what the process may open, a connection is refused; those that stand are served, and
    the controller is always reached.
    """
    broker = MemoryBroker()
    broker.broker = KafkaServer(broker.broker.config, broker.runtime, descriptors=96)
    broker.start()
    held = broker.broker.log_manager.directories.descriptors()
    assert held == 32, "a third of the limit is for segments"
    assert broker.broker.sockets.counts.descriptor_limit() == 96 - 24 - 12 - 32
    # Answers refer to more segments than logs may hold: what they take, connections may not have.
    for number in range(20):
        file = SegmentFile(
            broker.broker.log_manager.directories.online()[0].pool, f"/data/{number}"
        )
        file.create()
        file.acquire()
    while broker.broker.sockets.counts.descriptor_limit() > 8:
        file = SegmentFile(
            broker.broker.log_manager.directories.online()[0].pool,
            f"/data/more{broker.broker.sockets.counts.descriptor_limit()}",
        )
        file.create()
        file.acquire()
    kept = [broker.connection() for _ in range(12)]
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    refused: list[object] = []
    for connection in kept:
        connection.send(request, 3).addErrback(refused.append)
        broker.pass_time(0.1)
    assert len(refused) == 4
    assert broker.run(kept[0].send(request, 3)).error_code == 0
    for connection in kept:
        connection.close()
    broker.stop()


def test_a_flood_of_the_controllers_listener_keeps_no_broker_out() -> None:
    """Its share is taken by connections that never ask anything: each newcomer takes the oldest
    one's place, never that of one that asked.
    """
    broker = MemoryBroker()
    broker.broker = KafkaServer(broker.broker.config, broker.runtime, descriptors=96)
    broker.start()
    served_ones = broker.connection(9093)
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    assert broker.run(served_ones.send(request, 3)).error_code == 0
    flood = [broker.connection(9093) for _ in range(50)]
    for each in flood:
        each.connect().addErrback(lambda failure: None)
    broker.pass_time(0.1)
    factory = next(each for each in broker.broker.sockets.factories if each.on_controller)
    assert factory.counts.total <= 96 // 8
    assert broker.run(served_ones.send(request, 3)).error_code == 0
    assert broker.ask(request, 3, port=9093).error_code == 0
    broker.pass_time(30)
    assert not broker.broker.parts.metadata.image.brokers[1].fenced and not broker.fatal
    for connection in (served_ones, *flood):
        connection.close()
    broker.stop()


@pytest.mark.parametrize("error", [EMFILE, ENFILE])
def test_descriptors_that_are_short_fail_no_directory(error: int) -> None:
    """A topic made, records written, checkpoints due while no file can be opened: the directory
    stays, clients are told to try again, and when files can be opened all goes on by itself.
    """
    disk = SimDisk()
    broker = MemoryBroker(disk, replog_max_open_segments="8").start()
    create(broker, "t")
    produce(broker, "t", b"a")
    fault = Fault(error, "open")
    disk.faults.append(fault)
    create(broker, "later", 3)
    data = TopicProduceData(
        name="later", partition_data=[PartitionProduceData(index=0, records=batch(b"b"))]
    )
    refused = (
        broker.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 7)
        .responses[0]
        .partition_responses[0]
    )
    assert refused.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    broker.pass_time(70)
    assert broker.broker.log_manager.directories.offline() == [] and not broker.fatal
    disk.faults.clear()
    broker.pass_time(6)
    assert produce(broker, "later", b"b") == 0 and produce(broker, "t", b"c") == 1
    assert fetch(broker, "t") == [b"a", b"c"]
    broker.pass_time(60)
    assert b"later 0 1" in contents(broker)["/data/replication-offset-checkpoint"]
    assert b"topic_id" in contents(broker)["/data/later-0/partition.metadata"]
    broker.stop()
    assert disk.exists(CLEAN)


def test_many_partitions_are_taken_over_in_several_turns() -> None:
    """Server: a topic of 120 partitions does not hold up heartbeats: its logs are made ten at a
    time, and all of them are led in the end.
    """
    broker = MemoryBroker().start()
    manager = broker.broker.parts.replica_manager
    seen = []

    class Observer:
        def leadership_gained(self, topic_partition: object, leader_epoch: int) -> None:
            seen.append(len(manager.leaders()))

        def leadership_lost(self, topic_partition: object, leader_epoch: int) -> None:
            """At the stop."""

    manager.subscribe(Observer())
    create(broker, "wide", 120)
    assert seen == [count for count in range(10, 121, 10) for _ in range(10)]
    broker.stop()
    assert not broker.clock.getDelayedCalls()


def test_the_first_metadata_of_a_start_is_taken_over_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Server: fifty partitions a turn, fewer where the clock says that a turn is over; strays are
    set aside once, before all of them; the fence is lifted after the last.
    """
    broker = MemoryBroker().start()
    create(broker, "wide", 120)
    broker.stop()
    files = broker.files
    taken: list[int] = []
    fenced: list[bool] = []
    strays: list[int] = []
    original, set_aside = BrokerMetadataPublisher._next_deltas, role_change._set_strays_aside

    def counted(publisher: BrokerMetadataPublisher) -> None:
        manager = publisher._replica_manager
        before = len(manager.leaders())
        original(publisher)
        taken.append(len(manager.leaders()) - before)
        fenced.append(manager.image_source.image.brokers[1].fenced)

    def noted(manager: Any, image: Any, removals: Any) -> None:
        strays.append(len(manager.leaders()))
        set_aside(manager, image, removals)

    monkeypatch.setattr(BrokerMetadataPublisher, "_next_deltas", counted)
    monkeypatch.setattr(role_change, "_set_strays_aside", noted)
    broker = MemoryBroker(files).start()
    # led by nobody until the fence is lifted, which is the next delta
    manager = broker.broker.parts.replica_manager
    assert len(manager.partitions) == 120 and strays == [0]
    assert taken == [0, 0, 0, *[50, 50, 20]] and fenced[:3] == [True] * 3
    broker.stop()


def test_a_broker_that_was_unregistered_while_it_lives_serves_on() -> None:
    """RL 8.2, 8.3: UnregisterBroker of the only broker: Metadata names it again, by itself, and
    its partitions are written and read as before.
    """
    memory = MemoryBroker().start()
    create(memory, "t")
    assert produce(memory, "t", b"before") == 0
    assert memory.ask(UnregisterBrokerRequest(broker_id=1), 0).error_code == 0
    memory.pass_time(5)
    answer = memory.ask(MetadataRequest(topics=None), 12)
    assert [broker.node_id for broker in answer.brokers] == [1]
    assert produce(memory, "t", b"after") == 1
    assert fetch(memory, "t") == [b"before", b"after"] and not memory.fatal
    memory.stop()


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [(2, "t", "segment.bytes"), (4, "", "log.segment.bytes"), (4, "1", "log.segment.bytes")],
)
def test_a_stored_setting_of_another_version_keeps_nobody_from_serving(
    kind: int, name: str, key: str
) -> None:
    """Segments of 100,000 bytes, which Apache Kafka 3.9 takes: the topics of the same piece of
    the metadata had no leader, and a controller that found it did not start.
    """
    broker = MemoryBroker().start()
    broker.broker._controller.write(
        [ConfigRecord(resource_type=kind, resource_name=name, name=key, value="100000")]
    )
    broker.pass_time(1)
    for topic in ("a", "t", "z"):
        create(broker, topic)
    broker.stop()
    again = MemoryBroker(broker.files).start()
    assert [produce(again, topic, b"v") for topic in ("a", "t", "z")] == [0, 0, 0]
    for each, of in ((2, "t"), (4, "1"), (4, "")):
        resource = DescribeConfigsResource(resource_type=each, resource_name=of)
        answer = again.ask(DescribeConfigsRequest(resources=[resource]), 4)
        assert answer.results[0].error_code == 0
    again.stop()


def test_others_are_served_while_a_long_batch_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In pieces, before it is appended; what is refused leaves the partition to the next."""
    for module in (log_module, produce_module):
        monkeypatch.setattr(module, "LONG_BYTES", 3000)
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", 500)
    monkeypatch.setattr(produce_module, "_BYTES_OF_AN_ELEMENT", 0)
    broker = MemoryBroker().start()
    create(broker, "t")
    create(broker, "u")
    held = broker.broker.parts.replica_manager.long_appends.held
    order: list[str] = []
    connections = {name: broker.connection() for name in ("damaged", "long", "behind", "other")}
    for each in connections.values():
        broker.run(each.connect())

    def send(name: str, topic: str, records: bytes) -> None:
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=0, records=records)]
        )
        connection = connections[name]
        sent = connection.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 7)
        sent.addCallback(
            lambda answer: order.append(
                f"{name} {answer.responses[0].partition_responses[0].error_code}"
            )
        )

    value = bytes(5000)
    damaged = bytearray(batch(value))
    damaged[-1] ^= 1
    send("damaged", "t", bytes(damaged))
    send("long", "t", batch(value))
    send("behind", "t", batch(b"behind"))
    send("other", "u", batch(b"other"))
    broker.pass_time(0.5)
    assert order[:2] == ["damaged 2", "other 0"] and not held
    assert sorted(order[2:]) == ["behind 0", "long 0"]
    assert sorted(each or b"" for each in fetch(broker, "t")) == [value, b"behind"]
    broker.stop()
