"""Both errors of the minimum ISR as a client sees them, and how roles and ISR changes travel:
three production brokers on simulated machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.test_three_brokers import Three
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from twisted_broker.wire.records import BatchBuilder

LEADER, TOPIC_RESOURCE = 2, 2
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


class Led(Three):
    """`t-0` is led by 2, followed by 1 (which is the controller) and 3, with a minimum ISR of
    two.
    """

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        placed = [CreatableReplicaAssignment(partition_index=0, broker_ids=[LEADER, 1, 3])]
        setting = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
        asked = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=placed, configs=setting
        )
        assert (
            self.ask(1, CreateTopicsRequest(topics=[asked], timeout_ms=30_000), 7)
            .topics[0]
            .error_code
            == 0
        )
        self.until(lambda: all(self.held(number) for number in (1, 2, 3)), "all hold it")

    def held(self, number: int) -> Any:
        """The partition as a broker holds it."""
        broker = self.node(number).broker
        return (
            None
            if broker is None
            else broker.parts.replica_manager.partitions.get(TopicPartition("t", 0))
        )

    @property
    def isr(self) -> list[int]:
        return sorted(self.partitions()[0].isr)

    def send(self, request: Any, version: int, number: int = LEADER) -> list[Any]:
        """Gets the answer when it is there."""
        found: list[Any] = []
        BrokerConnection(self.runtime, f"n{number}", CLIENT_PORT, "client").send(
            request, version, timeout_ms=90_000
        ).addBoth(found.append)
        return found

    def send_record(self, acks: int = -1, timeout_ms: int = 60_000) -> list[Any]:
        builder = BatchBuilder()
        builder.append(0, None, b"v")
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=0, records=builder.build())]
        )
        return self.send(ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data]), 9)

    def answer(self, sent: list[Any]) -> ErrorCode:
        self.until(lambda: sent, "an answer")
        return ErrorCode(sent[0].responses[0].partition_responses[0].error_code)  # type: ignore[call-arg]

    def raise_minimum(self, minimum: int) -> list[Any]:
        change = configs.IncrementalAlterConfigsRequestAlterableConfig(
            name="min.insync.replicas", config_operation=0, value=str(minimum)
        )
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configs=[change]
        )
        return self.send(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1, 1)

    def demand(self, minimum: int) -> None:
        """The same, until the leader knows."""
        self.raise_minimum(minimum)
        self.until(lambda: self.held(LEADER).min_isr == minimum, "the leader knows the new minimum")

    def pass_time(self, seconds: float) -> None:
        self.cluster.run_until(self.cluster.sim.now + seconds)


@pytest.fixture
def led() -> Iterator[Led]:
    with SimCluster(5, 3, SETTINGS, NetworkConditions(), shuffle=False) as cluster:
        yield Led(cluster)


def test_below_the_minimum_nothing_is_written_and_it_ends_with_the_replica_that_comes_back(
    led: Led,
) -> None:
    """RL 1.6: NOT_ENOUGH_REPLICAS over the wire, with acks=-1 only; the log does not grow; with
    the replica back all goes on.
    """
    assert led.answer(led.send_record()) == ErrorCode.NONE
    led.node(3).kill()
    led.until(lambda: led.isr == [1, 2], "3 is out")
    assert led.answer(led.send_record()) == ErrorCode.NONE
    led.demand(3)
    end = led.log(LEADER).log_end_offset
    assert led.answer(led.send_record()) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.log(LEADER).log_end_offset == end
    assert led.answer(led.send_record(acks=1)) == ErrorCode.NONE
    assert led.log(LEADER).high_watermark == end, (
        "not even what is on all that live is shown below the minimum"
    )
    led.node(3).start()
    led.until(lambda: led.isr == [1, 2, 3], "3 is back")
    assert led.answer(led.send_record()) == ErrorCode.NONE
    led.until(lambda: led.log(LEADER).high_watermark == end + 2, "all is shown")


def test_the_isr_that_falls_below_the_minimum_while_a_produce_waits(led: Led) -> None:
    """RL 1.7: the record was appended and reached, but at that moment the ISR is too small:
    NOT_ENOUGH_REPLICAS_AFTER_APPEND over the wire.

    The leader hears in one delta that 3 is fenced (the high watermark moves) and that three are
    demanded: the controller's disk, stalled, makes both durable at once.
    """
    led.node(3).kill()
    sent = led.send_record()
    led.until(
        lambda: led.held(LEADER) and led.held(LEADER).remote_replicas[1].log_end_offset == 1,
        "1 has it",
    )
    led.node(1).stall_disk()
    led.pass_time(1)
    raised = led.raise_minimum(3)
    led.pass_time(4)
    assert not sent and not raised and led.isr == [1, 2, 3]
    led.node(1).resume_disk()
    assert led.answer(sent) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert (
        led.isr == [1, 2] and led.log(LEADER).high_watermark == led.log(LEADER).log_end_offset == 1
    )
    assert led.answer(led.send_record()) == ErrorCode.NOT_ENOUGH_REPLICAS


def test_below_the_minimum_what_waits_times_out(led: Led) -> None:
    """RL 1.7, 2.3: with the ISR below the minimum the high watermark stays: REQUEST_TIMED_OUT,
    the record is there all the same.
    """
    led.demand(3)
    led.node(3).kill()
    sent = led.send_record(timeout_ms=20_000)
    led.until(
        lambda: led.isr == [1, 2] and led.held(LEADER).remote_replicas[1].log_end_offset == 1,
        "all that live have it",
    )
    assert led.answer(sent) == ErrorCode.REQUEST_TIMED_OUT
    assert led.log(LEADER).high_watermark == 0
    led.node(3).start()
    led.until(lambda: led.log(LEADER).high_watermark == 1, "it is shown when 3 is back")


def test_roles_and_settings_come_as_records_and_isr_changes_leave_as_alter_partition(
    led: Led,
) -> None:
    """RL 0.1: a leader that cannot be fetched from shrinks the ISR itself: nobody is fenced; all
    brokers hear of it in the metadata log.
    """
    assert led.held(LEADER).is_leader and led.held(LEADER).min_isr == 2
    assert [led.held(number).leader_id for number in (1, 3)] == [LEADER, LEADER]
    led.cluster.network.block("n3", f"n{LEADER}")
    led.cluster.network.block(f"n{LEADER}", "n3")
    led.send_record(acks=1)
    led.until(lambda: led.isr == [1, 2], "3 has left the ISR")
    assert (
        not led.image.brokers[3].fenced
        and led.partitions()[0].leader_epoch == led.held(LEADER).leader_epoch == 0
    )
    led.until(
        lambda: led.held(LEADER).partition_epoch == led.partitions()[0].partition_epoch,
        "the leader knows, by the answer or by the record",
    )
    led.until(
        lambda: led.held(3).partition_epoch == led.partitions()[0].partition_epoch,
        "3 hears of it, too",
    )
    led.cluster.network.heal()
    led.until(lambda: led.isr == [1, 2, 3], "3 is back")
