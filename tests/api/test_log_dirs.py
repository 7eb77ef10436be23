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
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker(log_dirs="/a,/b").start()
    create(made, "t")
    yield made
    made.stop()


def create(broker: MemoryBroker, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics
    assert result.error_code == 0
    broker.pass_time(1)


def produce(broker: MemoryBroker, count: int = 20) -> None:
    for _ in range(count):
        (outcome,) = broker.broker.broker_server.replica_manager.produce(
            [(TP, batch(value=b"v" * 90))], 1
        )
        assert not outcome.error


def alter(broker: MemoryBroker, path: str, version: int = 2, topic: str = "t") -> int:
    named = log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=[0])
    asked = log_dirs.AlterReplicaLogDirsRequest(
        dirs=[log_dirs.AlterReplicaLogDir(path=path, topics=[named])]
    )
    (answer,) = broker.ask(asked, version).results
    assert answer.topic_name == topic
    (partition,) = answer.partitions
    assert partition.partition_index == 0
    return partition.error_code


def described(broker: MemoryBroker) -> dict[str, list[tuple[int, bool]]]:
    """directory -> (lag, is it a copy) of what it holds of the partition."""
    results = broker.ask(log_dirs.DescribeLogDirsRequest(topics=None), 4).results
    return {
        result.log_dir: [
            (each.offset_lag, each.is_future_key)
            for topic in result.topics
            if topic.name == "t"
            for each in topic.partitions
        ]
        for result in results
    }


def places(broker: MemoryBroker) -> tuple[str, str]:
    """Where it is, and the other directory."""
    here = broker.broker.log_manager.logs[TP].directory.rpartition("/")[0]
    return here, "/b" if here == "/a" else "/a"


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_moves_and_the_controller_knows(broker: MemoryBroker, version: int) -> None:
    """RL 3.8; KIP-113, KIP-858."""
    produce(broker)
    source, target = places(broker)
    assert alter(broker, target, version) == ErrorCode.NONE
    broker.pass_time(3)
    assert places(broker) == (target, source)
    assert described(broker) == {target: [(0, False)], source: []}
    state = broker.broker.broker_server.observer.image.partition("t", 0)
    directory = broker.broker.log_manager.directories.by_path[target]
    assert state is not None and state.directory_of(1) == directory.directory_id
    assert not broker.broker.broker_server.assignments._moving
    produce(broker)
    assert broker.broker.log_manager.logs[TP].high_watermark == 40


def test_a_topic_that_is_not_there_leaves_the_directories_empty(broker: MemoryBroker) -> None:
    """Kafka's testDescribeLogDirsWithoutAnyPartitionTopic."""
    wanted = [log_dirs.DescribableLogDirTopic(topic="none", partitions=[0])]
    results = broker.ask(log_dirs.DescribeLogDirsRequest(topics=wanted), 4).results
    assert [(each.log_dir, each.error_code, each.topics) for each in results] == [
        ("/a", 0, []),
        ("/b", 0, []),
    ]


def test_a_future_log_is_described_with_what_it_lacks() -> None:
    """KIP-113: is_future_key and lag."""
    broker = MemoryBroker(log_dirs="/a,/b", **{RATE: "200"}).start()
    create(broker, "t")
    produce(broker)
    source, target = places(broker)
    assert alter(broker, target) == 0
    broker.pass_time(2)
    found = described(broker)
    assert found[source] == [(0, False)]
    ((lag, is_future),) = found[target]
    assert is_future and 0 < lag < 20
    # Where it is already: that ends it.
    assert alter(broker, source) == 0
    assert described(broker) == {source: [(0, False)], target: []}
    broker.stop()


def test_a_move_is_explained_and_counted() -> None:
    """`replog explain`, its page and Kafka's names of metrics show it."""
    broker = MemoryBroker(log_dirs="/a,/b", **{RATE: "200"}).start()
    create(broker, "t")
    produce(broker)
    source, target = places(broker)
    assert alter(broker, target) == 0
    broker.pass_time(2)
    view = BrokerView(lambda: broker.broker.parts)
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
    broker.stop()


def test_what_is_refused(broker: MemoryBroker) -> None:
    assert alter(broker, "/elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(broker, "/b", topic="unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.broker.log_manager.preferred, "of no partition of the cluster"


def test_who_may_not_alter_the_cluster_moves_nothing(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted_broker.api.context import RequestContext

    monkeypatch.setattr(RequestContext, "may_on_cluster", lambda self, operation: False)
    assert alter(broker, places(broker)[1]) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not broker.broker.log_manager.moves.futures


def cordon(broker: MemoryBroker, paths: str) -> None:
    edit = AlterableConfig(name="cordoned.log.dirs", config_operation=0, value=paths)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[edit])
    answer = broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer
    broker.pass_time(3)


def test_a_cordoned_directory_takes_no_new_replica(broker: MemoryBroker) -> None:
    """KIP-1066: at once, no move to it, shown, and the controller knows; until it is taken back."""
    source, target = places(broker)
    cordon(broker, target)
    for number in range(4):
        create(broker, f"new{number}")
    logs = broker.broker.log_manager.logs
    new = [log for name, log in logs.items() if name.topic.startswith("new")]
    assert len(new) == 4 and all(log.directory.startswith(source) for log in new)
    assert alter(broker, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    results = broker.ask(log_dirs.DescribeLogDirsRequest(topics=None), 5).results
    assert {each.log_dir: each.is_cordoned for each in results} == {source: False, target: True}
    directory = broker.broker.log_manager.directories.by_path[target].directory_id
    assert broker.broker.broker_server.observer.image.brokers[1].cordoned == (directory,)
    cordon(broker, "")
    assert not broker.broker.broker_server.observer.image.brokers[1].cordoned
    create(broker, "last")
    assert alter(broker, target) == ErrorCode.NONE


def test_where_all_directories_are_cordoned_the_controller_places_nothing() -> None:
    """KIP-1066: a broker without an open directory gets no replica."""
    broker = MemoryBroker(log_dirs="/a,/b", cordoned_log_dirs="*").start()
    broker.pass_time(3)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    (result,) = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    broker.stop()


@pytest.mark.parametrize("value", ["/elsewhere", "/a,*"])
def test_a_cordoned_directory_is_one_of_log_dirs(value: str) -> None:
    config = MemoryBroker(log_dirs="/a,/b", cordoned_log_dirs=value).broker.config
    with pytest.raises(ConfigError, match=r"entries of log\.dirs, or \* alone"):
        check_together(config)
