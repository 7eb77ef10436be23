"""A whole member of a ZooKeeper cluster, on memory twins."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import ensureDeferred

from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import TOPIC_ID
from tests.zookeeper.fixtures import role
from tests.zookeeper.memory_zookeeper import MemoryZooKeeper
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.interfaces import TopicPartition
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.server.zookeeper_membership import ZooKeeperMembership
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.znodes import CLUSTER_ID, broker_path

TP = TopicPartition("t", 0)
_DEAD = 99


class Member(MemoryBroker):
    """Broker 1 of an ensemble where the session of its last process still lives."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.ensemble = MemoryEnsemble()
        self.ensemble.create(CLUSTER_ID, b'{"version":"1","id":"c2ltdWxhdGVkLWNsdXN0ZQ"}')
        _, self.before = self.ensemble.create(broker_path(1), b"{}", owner=_DEAD)
        values = dict(SAMPLE_VALUES) | {
            "node.id": "1",
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "log.dirs": "/data",
            "zookeeper.connect": "zk:2181",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.broker: Any = KafkaServer(
            BrokerConfig(values),
            self.runtime,
            on_fatal=self.fatal.append,
            membership=partial(
                ZooKeeperMembership,
                zookeeper=lambda runtime, config: MemoryZooKeeper(self.ensemble, runtime.clock),
            ),
        )


def _roles(broker_epoch: int) -> messages.LeaderAndIsrRequest:
    return messages.LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=5,
        broker_epoch=broker_epoch,
        topic_states=[
            messages.LeaderAndIsrTopicState(
                topic_name="t", topic_id=TOPIC_ID, partition_states=[role()]
            )
        ],
    )


def test_nobody_commands_a_broker_that_is_not_registered() -> None:
    """RL 1.3: a new controller reads the node of the process before this one. That process led the
    partition, and this one may have less than it had: it is not to lead under the same epoch.
    """
    member = Member()
    starting = ensureDeferred(member.broker.start())
    member.pass_time(1.0)
    connection = member.connection()
    answers: list[Any] = []
    sent = connection.send(_roles(member.before.czxid), 7).addCallback(answers.append)
    member.pass_time(2.0)
    assert not answers and TP not in member.broker.broker_server.replica_manager.partitions

    member.ensemble.end_session(_DEAD)
    member.run(sent)
    assert answers[0].error_code == ErrorCode.STALE_BROKER_EPOCH
    assert TP not in member.broker.broker_server.replica_manager.partitions
    epoch = member.ensemble.node(broker_path(1)).czxid
    assert member.run(connection.send(_roles(epoch), 7)).error_code == ErrorCode.NONE
    assert member.broker.broker_server.replica_manager.partitions[TP].is_leader
    connection.close()
    starting.addErrback(lambda failure: None).cancel()
