"""ISR changes of a leader: conditional writes of `state`, announced by isr-change-propagation."""

from __future__ import annotations

import json
from typing import Any

from tests.replication.fixtures import TP, at, code_of, follower
from tests.zookeeper.fixtures import CONTROLLER_EPOCH, Member, role
from tests.zookeeper.memory_zookeeper import MemoryZooKeeper
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.mirrored_partition import truncate_mirrored
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper.isr_state_writes import IsrStateWrites
from twisted_broker.zookeeper.znodes import PartitionStateNode, read_state, state_json, state_path

PATH = state_path(TP)
CHANGES = "/isr_change_notification"


class Leader(Member):
    """Broker 1 leads t-0 with broker 2 out of the ISR; the `state` node is at version 1."""

    def __init__(self) -> None:
        super().__init__()
        self.ensemble = MemoryEnsemble()
        self.zookeeper = MemoryZooKeeper(self.ensemble, self.clock)
        self.zookeeper.connect()
        self.writes = IsrStateWrites(
            self.runtime, 1, self.zookeeper, lambda name: self.state.controller_epochs[name]
        )
        self.replicas.effects._alter_partition = self.writes
        self.ensemble.create(PATH, b"")
        self.ensemble.set(PATH, state_json(PartitionStateNode(1, 1, CONTROLLER_EPOCH, (1,))))
        self.lead(role(isr=[1], partition_epoch=1), version=4, topic_id=bytes(16))
        self.produce()

    def catch_up(self) -> None:
        """Broker 2 fetches at the end: it is to join."""
        self.replicas.fetch(follower(2, epoch=45), [at(1)])
        self.replicas.drain()

    def written(self) -> PartitionStateNode:
        return read_state(PATH, self.ensemble.node(PATH).data)

    def turns(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        for _ in range(5):
            self.clock.advance(0)

    def announced(self) -> list[Any]:
        if CHANGES not in self.ensemble.nodes:
            return []
        return [
            json.loads(self.ensemble.node(f"{CHANGES}/{name}").data)
            for name in self.ensemble.children(CHANGES)
        ]


def test_a_follower_joins_by_a_conditional_write() -> None:
    """RL 0.2, 2.5: compare-and-set on `state`; its version is the partition epoch."""
    leader = Leader()
    leader.catch_up()
    assert leader.partition().isr_state.in_flight
    assert leader.partition().isr_state.maximal_isr == {1, 2}
    leader.turns()
    assert leader.written() == PartitionStateNode(1, 1, CONTROLLER_EPOCH, (1, 2))
    assert json.loads(leader.ensemble.node(PATH).data) == {
        "controller_epoch": CONTROLLER_EPOCH,
        "leader": 1,
        "version": 1,
        "leader_epoch": 1,
        "isr": [1, 2],
    }
    assert leader.partition().isr_state.isr == {1, 2}
    assert leader.partition().partition_epoch == 2
    assert leader.writes.changed == {TP}  # RL 2.5: record it for 1.2


def test_a_lost_race_changes_nothing_until_the_controllers_next_word() -> None:
    """RL 2.5: the controller elected another leader; what it wrote stays. The mutation "ISR written
    unconditionally" fails here.
    """
    leader = Leader()
    elected = state_json(PartitionStateNode(2, 2, CONTROLLER_EPOCH, (2,)))
    leader.ensemble.set(PATH, elected)
    leader.catch_up()
    leader.turns()
    assert leader.ensemble.node(PATH).data == elected
    state = leader.partition().isr_state
    assert state.in_flight and state.isr == {1} and not leader.writes.changed
    leader.turns(10)
    assert leader.ensemble.node(PATH).data == elected
    leader.lead(role(leader=2, leader_epoch=2, partition_epoch=2), version=4, topic_id=bytes(16))
    assert not leader.partition().is_leader


def test_a_write_whose_answer_was_lost_counts_once() -> None:
    leader = Leader()
    leader.zookeeper.lose_answers = True
    leader.catch_up()
    leader.turns()
    assert leader.written().isr == (1, 2) and leader.partition().isr_state.in_flight
    leader.zookeeper.lose_answers = False
    leader.turns(1)
    assert leader.partition().isr_state.isr == {1, 2}
    assert leader.partition().partition_epoch == 2 == leader.ensemble.node(PATH).version


def test_without_zookeeper_a_change_waits_and_ends_with_the_role() -> None:
    leader = Leader()
    leader.zookeeper.disconnect()
    leader.catch_up()
    leader.turns(3)
    assert leader.partition().isr_state.in_flight and leader.written().isr == (1,)
    leader.lead(role(leader=2, leader_epoch=2, partition_epoch=2), version=4, topic_id=bytes(16))
    leader.zookeeper.connect()
    leader.turns(3)
    assert leader.written().isr == (1,)


def test_changes_are_announced_once_nothing_changed_for_5_seconds() -> None:
    """RL 1.2: every 2,500 ms; more than 5,000 ms without a change. RL 1.1: the task's name."""
    leader = Leader()
    leader.writes.start()
    leader.turns(2.5)
    assert leader.announced() == []  # nothing changed
    leader.catch_up()
    leader.turns()
    for _ in range(2):  # 2.5 s and 5 s after the change: not more than 5 s
        leader.turns(2.5)
        assert leader.announced() == []
    leader.turns(2.5)
    assert leader.announced() == [{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}]
    assert not leader.writes.changed
    leader.turns(10)
    assert len(leader.announced()) == 1


def test_steady_changes_are_announced_after_a_minute() -> None:
    """RL 1.2: or the last publication is more than 60,000 ms old."""
    leader = Leader()
    leader.writes.start()
    for _ in range(24):
        leader.writes.changed.add(TP)
        leader.writes._changed_ms = leader.runtime.now_ms()
        leader.turns(2.5)
        assert leader.announced() == []
    leader.writes._changed_ms = leader.runtime.now_ms()
    leader.turns(2.5)
    assert len(leader.announced()) == 1


def test_what_could_not_be_announced_stays() -> None:
    leader = Leader()
    leader.writes.start()
    leader.catch_up()
    leader.turns()
    leader.zookeeper.disconnect()
    leader.turns(10)
    assert leader.writes.changed == {TP}
    leader.zookeeper.connect()
    leader.turns(2.5)
    assert len(leader.announced()) == 1


def test_a_truncation_of_a_mirrored_log_is_refused() -> None:
    """Only a controller begins a leader epoch: nothing is written."""
    leader = Leader()
    leader.partition().update_config(LogConfig(replog_mirror_source="cluster topic"), 0)
    for _ in range(2):
        found = code_of(truncate_mirrored, leader.partition(), 0, 1, 0)
        leader.replicas.drain()
        leader.turns()
    assert found == ErrorCode.INVALID_REQUEST
    assert leader.written() == PartitionStateNode(1, 1, CONTROLLER_EPOCH, (1,))
