"""AlterReplicaLogDirs and DescribeLogDirs on a whole broker with two directories in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import batch
from twisted_broker.cli.explain import Answer
from twisted_broker.cli.explain_text import explain_lines
from twisted_broker.config_validation import check_together
from twisted_broker.interfaces import TopicPartition
from twisted_broker.settings import ConfigError
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import log_dirs
from twisted_broker.wire.messages.configs import IncrementalAlterConfigsRequest
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

TP = TopicPartition("t", 0)
RATE = "replica_alter_log_dirs_io_max_bytes_per_second"


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker(log_dirs="/a,/b").start()
    create(made, "t")
    yield made
    made.stop()


def create(house: MemoryBroker, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = house.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics
    assert result.error_code == 0
    house.pass_time(1)


def produce(house: MemoryBroker, count: int = 20) -> None:
    for _ in range(count):
        (outcome,) = house.broker.role.replica_manager.produce([(TP, batch(value=b"v" * 90))], 1)
        assert not outcome.error


def alter(house: MemoryBroker, path: str, version: int = 2, topic: str = "t") -> int:
    named = log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=[0])
    asked = log_dirs.AlterReplicaLogDirsRequest(
        dirs=[log_dirs.AlterReplicaLogDir(path=path, topics=[named])]
    )
    (answer,) = house.ask(asked, version).results
    assert answer.topic_name == topic
    (partition,) = answer.partitions
    assert partition.partition_index == 0
    return partition.error_code


def described(house: MemoryBroker) -> dict[str, list[tuple[int, bool]]]:
    """directory -> (lag, is it a copy) of what it holds of the partition."""
    results = house.ask(log_dirs.DescribeLogDirsRequest(topics=None), 4).results
    return {
        result.log_dir: [
            (each.offset_lag, each.is_future_key)
            for topic in result.topics
            if topic.name == "t"
            for each in topic.partitions
        ]
        for result in results
    }


def places(house: MemoryBroker) -> tuple[str, str]:
    """Where it is, and the other directory."""
    here = house.broker.log_manager.logs[TP].directory.rpartition("/")[0]
    return here, "/b" if here == "/a" else "/a"


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_moves_and_the_controller_knows(house: MemoryBroker, version: int) -> None:
    """RL 3.8; KIP-113, KIP-858."""
    produce(house)
    source, target = places(house)
    assert alter(house, target, version) == ErrorCode.NONE
    house.pass_time(3)
    assert places(house) == (target, source)
    assert described(house) == {target: [(0, False)], source: []}
    state = house.broker.role.observer.image.partition("t", 0)
    directory = house.broker.log_manager.directories.by_path[target]
    assert state is not None and state.directory_of(1) == directory.directory_id
    assert not house.broker.role.assignments._moving
    produce(house)
    assert house.broker.log_manager.logs[TP].high_watermark == 40


def test_a_topic_that_is_not_there_leaves_the_directories_empty(house: MemoryBroker) -> None:
    """Kafka's testDescribeLogDirsWithoutAnyPartitionTopic."""
    wanted = [log_dirs.DescribableLogDirTopic(topic="none", partitions=[0])]
    results = house.ask(log_dirs.DescribeLogDirsRequest(topics=wanted), 4).results
    assert [(each.log_dir, each.error_code, each.topics) for each in results] == [
        ("/a", 0, []),
        ("/b", 0, []),
    ]


def test_a_copy_is_described_with_what_it_lacks() -> None:
    """KIP-113: is_future_key and lag."""
    house = MemoryBroker(log_dirs="/a,/b", **{RATE: "200"}).start()
    create(house, "t")
    produce(house)
    source, target = places(house)
    assert alter(house, target) == 0
    house.pass_time(2)
    found = described(house)
    assert found[source] == [(0, False)]
    ((lag, is_future),) = found[target]
    assert is_future and 0 < lag < 20
    # Where it is already: that ends it.
    assert alter(house, source) == 0
    assert described(house) == {source: [(0, False)], target: []}
    house.stop()


def test_a_move_is_explained_and_counted() -> None:
    """`replog explain`, its page and Kafka's names of metrics show it."""
    house = MemoryBroker(log_dirs="/a,/b", **{RATE: "200"}).start()
    create(house, "t")
    produce(house)
    source, target = places(house)
    assert alter(house, target) == 0
    house.pass_time(2)
    view = BrokerView(lambda: house.broker.parts)
    found = view.describe(TP)
    assert found is not None
    moving = found["moving"]
    assert (moving["source"], moving["target"], moving["phase"]) == (source, target, "copying")
    assert 0 < moving["behind"] < 20
    assert moving["why"].startswith(f"moves from {source} to {target} for ")
    assert moving["why"] in "".join(explain_lines("t", 0, [Answer("here", "1", found)]))
    out = Exposition()
    for _ in BrokerCollector(view).collect(out):
        pass
    lags = [
        float(line.rpartition(b" ")[2])
        for line in b"".join(out.text()).splitlines()
        if line.startswith(b"kafka_server_replicaalterlogdirsmanager_maxlag{")
    ]
    assert lags == [moving["behind"]]
    house.stop()


def test_what_is_refused(house: MemoryBroker) -> None:
    assert alter(house, "/elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(house, "/b", topic="unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not house.broker.log_manager.preferred, "of no partition of the cluster"


def test_who_may_not_alter_the_cluster_moves_nothing(
    house: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted_broker.api.context import RequestContext

    monkeypatch.setattr(RequestContext, "may_on_cluster", lambda self, operation: False)
    assert alter(house, places(house)[1]) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not house.broker.log_manager.moves.futures


def cordon(house: MemoryBroker, paths: str) -> None:
    edit = AlterableConfig(name="cordoned.log.dirs", config_operation=0, value=paths)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[edit])
    answer = house.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer
    house.pass_time(3)


def test_a_cordoned_directory_takes_no_new_replica(house: MemoryBroker) -> None:
    """KIP-1066: at once, no move to it, shown, and the controller knows; until it is taken back."""
    source, target = places(house)
    cordon(house, target)
    for number in range(4):
        create(house, f"new{number}")
    logs = house.broker.log_manager.logs
    new = [log for name, log in logs.items() if name.topic.startswith("new")]
    assert len(new) == 4 and all(log.directory.startswith(source) for log in new)
    assert alter(house, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    results = house.ask(log_dirs.DescribeLogDirsRequest(topics=None), 5).results
    assert {each.log_dir: each.is_cordoned for each in results} == {source: False, target: True}
    directory = house.broker.log_manager.directories.by_path[target].directory_id
    assert house.broker.role.observer.image.brokers[1].cordoned == (directory,)
    cordon(house, "")
    assert not house.broker.role.observer.image.brokers[1].cordoned
    create(house, "last")
    assert alter(house, target) == ErrorCode.NONE


def test_where_all_directories_are_cordoned_the_controller_places_nothing() -> None:
    """KIP-1066: a broker without an open directory gets no replica."""
    house = MemoryBroker(log_dirs="/a,/b", cordoned_log_dirs="*").start()
    house.pass_time(3)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    (result,) = house.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    house.stop()


@pytest.mark.parametrize("value", ["/elsewhere", "/a,*"])
def test_a_cordoned_directory_is_one_of_log_dirs(value: str) -> None:
    config = MemoryBroker(log_dirs="/a,/b", cordoned_log_dirs=value).broker.config
    with pytest.raises(ConfigError, match=r"entries of log\.dirs, or \* alone"):
        check_together(config)
