"""A replica manager whose roles come from the controller of a ZooKeeper cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from tests.replication.fixtures import TOPIC_ID, Fixture
from tests.zookeeper.memory_zookeeper import MemoryZooKeeper
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.turns import Turns
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.acl_watch import AclWatch
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.control_requests import ControlRequests
from twisted_broker.zookeeper.entity_writes import EntityWrites

CONTROLLER, CONTROLLER_EPOCH, BROKER_EPOCH = 2, 5, 70


class Member(Fixture):
    """Broker 1; 2 is the controller, and 2 and 3 are alive."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.state = ClusterState(1, "PLAINTEXT")
        self.state.broker_epoch = BROKER_EPOCH
        self.loaded: list[str] = []
        self.replicas.image_source = self.state
        self.replicas._brokers._source = self.state
        zookeeper = MemoryZooKeeper(MemoryEnsemble(), self.clock)
        acls = AclWatch(self.runtime, zookeeper, self.state)
        self.roles = ControlRequests(
            self.state,
            self.replicas,
            self.log_manager,
            Turns(self.clock, self.runtime.marks),
            self.load_settings,
            EntityWrites(self.runtime, zookeeper, acls),
        )
        self.update([])

    async def load_settings(self, topics: Collection[str]) -> None:
        """Of topics that were just made."""
        self.loaded.extend(topics)

    def done(self, work: Any) -> Any:
        """Its result, after as many turns as it takes."""
        found: list[Any] = []
        deferred: Deferred[Any] = ensureDeferred(work)
        deferred.addBoth(found.append)
        for _ in range(1000):
            if found:
                break
            self.clock.advance(0)
        (result,) = found
        if hasattr(result, "raiseException"):
            result.raiseException()
        return result

    def update(
        self,
        topics: Iterable[messages.UpdateMetadataTopicState],
        live: Iterable[int] = (1, 2, 3),
        **fields: Any,
    ) -> messages.UpdateMetadataResponse:
        request = messages.UpdateMetadataRequest(
            **{
                "controller_id": CONTROLLER,
                "controller_epoch": CONTROLLER_EPOCH,
                "broker_epoch": BROKER_EPOCH,
                "topic_states": list(topics),
                "live_brokers": [
                    messages.UpdateMetadataBroker(
                        id=node,
                        rack=None,
                        endpoints=[
                            messages.UpdateMetadataEndpoint(
                                port=9090 + node, host="127.0.0.1", listener="PLAINTEXT"
                            )
                        ],
                    )
                    for node in live
                ],
                **fields,
            }
        )
        response: messages.UpdateMetadataResponse = self.done(self.roles.update_metadata(request))
        return response

    def lead(
        self, *states: messages.LeaderAndIsrPartitionState, version: int = 7, **fields: Any
    ) -> messages.LeaderAndIsrResponse:
        """LeaderAndIsr of topic t."""
        topic = messages.LeaderAndIsrTopicState(
            topic_name="t",
            topic_id=fields.pop("topic_id", TOPIC_ID),
            partition_states=list(states),
        )
        request = messages.LeaderAndIsrRequest(
            **{
                "controller_id": CONTROLLER,
                "controller_epoch": CONTROLLER_EPOCH,
                "broker_epoch": BROKER_EPOCH,
                "topic_states": [topic],
                **fields,
            }
        )
        response: messages.LeaderAndIsrResponse = self.done(
            self.roles.leader_and_isr(request, version)
        )
        return response

    def stop(self, leader_epoch: int, delete: bool, **fields: Any) -> messages.StopReplicaResponse:
        """StopReplica of t-0."""
        request = self.stop_request(leader_epoch, delete, **fields)
        response: messages.StopReplicaResponse = self.done(self.roles.stop_replica(request))
        return response

    @staticmethod
    def stop_request(leader_epoch: int, delete: bool, **fields: Any) -> messages.StopReplicaRequest:
        state = messages.StopReplicaPartitionState(
            partition_index=0, leader_epoch=leader_epoch, delete_partition=delete
        )
        return messages.StopReplicaRequest(
            **{
                "controller_id": CONTROLLER,
                "controller_epoch": CONTROLLER_EPOCH,
                "broker_epoch": BROKER_EPOCH,
                "topic_states": [
                    messages.StopReplicaTopicState(topic_name="t", partition_states=[state])
                ],
                **fields,
            }
        )


def role(
    leader: int = 1, leader_epoch: int = 1, replicas: Iterable[int] = (1, 2), **fields: Any
) -> messages.LeaderAndIsrPartitionState:
    """Of partition 0; everyone is in sync."""
    return messages.LeaderAndIsrPartitionState(
        **{
            "partition_index": 0,
            "controller_epoch": CONTROLLER_EPOCH,
            "leader": leader,
            "leader_epoch": leader_epoch,
            "isr": list(replicas),
            "partition_epoch": leader_epoch,
            "replicas": list(replicas),
            "is_new": True,
            **fields,
        }
    )
