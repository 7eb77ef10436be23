"""Invariants of a cluster in ZooKeeper mode: the same rules, with the tree in ZooKeeper as the
truth about leaders and ISRs.

Owns `TreeImage`, which reads the tree as an image, `ZooKeeperState` and `ZooKeeperChecker`.

1. After each step of ZooKeeper's machine what was written is looked at: a leader epoch that goes
   back, a leader outside its ISR, a node that was written by someone who had not read it.
2. Nothing in ZooKeeper says that a broker came back with less than it had: a replica that lost
   power is owed nothing until it is seen to hold all that was committed, and one that is elected
   before that (it was alone in the ISR) counts as an unclean election. Kafka 4's eligible leader
   replicas (KIP-966) mend that; 3.9 has none.

Source: RL 9. Not here: the rules themselves (`simulation/checks`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twisted_broker.image.entries import (
    UNASSIGNED,
    BrokerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import TOPIC_RESOURCE, MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.server.zookeeper_membership import ZooKeeperMembership
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.committed_state import CommittedState, Key, Violation
from twisted_broker.simulation.checks.isr_members import Members
from twisted_broker.simulation.checks.replica_contents import Mirror
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.node import SimNode
from twisted_broker.simulation.zookeeper.cluster import ZooKeeperCluster
from twisted_broker.simulation.zookeeper.controller_channels import FIRST_OTHER
from twisted_broker.simulation.zookeeper.controller_context import TOPICS
from twisted_broker.simulation.zookeeper.ensemble import Ensemble
from twisted_broker.simulation.zookeeper.topic_deletions import DELETE_TOPICS
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.zookeeper.znodes import BROKER_IDS, read_config, read_state


class TreeImage:
    """The tree as an image: a partition's epoch is the version of its `state`."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._tree = ensemble.tree
        self.image = MetadataImage(offset=0)

    def read(self) -> MetadataImage:
        """As it is now; the same object while nothing was written."""
        if self.image.offset == self._tree.zxid:
            return self.image
        topics = self._topics()
        self.image = replace(
            self.image,
            offset=self._tree.zxid,
            brokers=self._brokers(),
            topics_by_name={topic.name: topic for topic in topics.values()},
            topics_by_id=topics,
            configs=self._configs(),
        )
        return self.image

    def _below(self, path: str) -> list[str]:
        return self._tree.children(path) if path in self._tree.nodes else []

    def _brokers(self) -> dict[int, BrokerRegistration]:
        return {
            int(name): BrokerRegistration(
                int(name),
                self._tree.node(f"{BROKER_IDS}/{name}").czxid,
                NULL_UUID,
                {},
                {},
                None,
                False,
                False,
                (),
            )
            for name in self._below(BROKER_IDS)
            if int(name) < FIRST_OTHER
        }

    def _topics(self) -> dict[bytes, TopicImage]:
        found = {}
        for name in self._below(TOPICS):
            content = json.loads(self._tree.node(f"{TOPICS}/{name}").data)
            partitions = {
                int(number): self._partition(name, int(number), content)
                for number in self._below(f"{TOPICS}/{name}/partitions")
                if f"{TOPICS}/{name}/partitions/{number}/state" in self._tree.nodes
            }
            key = bytes.fromhex(content["topic_id"]) if "topic_id" in content else name.encode()
            found[key] = TopicImage(name, key, partitions)
        return found

    def _partition(self, topic: str, number: int, content: dict[str, Any]) -> PartitionRegistration:
        path = f"{TOPICS}/{topic}/partitions/{number}/state"
        node = self._tree.node(path)
        state = read_state(path, node.data)
        replicas = tuple(content["partitions"][str(number)])
        return PartitionRegistration(
            replicas,
            (UNASSIGNED,) * len(replicas),
            state.isr,
            tuple(content["removing_replicas"].get(str(number), ())),
            tuple(content["adding_replicas"].get(str(number), ())),
            (),
            (),
            state.leader,
            int(state.recovering),
            state.leader_epoch,
            node.version,
        )

    def _configs(self) -> dict[tuple[int, str], dict[str, str]]:
        return {
            (TOPIC_RESOURCE, name): read_config(
                name, self._tree.node(f"/config/topics/{name}").data
            )
            for name in self._below("/config/topics")
        }


class ZooKeeperState(CommittedState):
    """`is_whole(broker, key)`: whether a broker is known to hold all that was committed."""

    def __init__(self, note: Any) -> None:
        super().__init__(note)
        self.weak: set[tuple[int, Key]] = set()
        """replicas that may lack what they had: their machine lost power"""
        self.is_whole: Any = lambda broker, key: False

    def key_of(self, partition: Partition) -> Key:
        """Topics of protocol 2.6 have no ids."""
        name = partition.topic_partition
        topic_id = bytes(partition.topic_id)
        key = (topic_id if topic_id != NULL_UUID else name.topic.encode(), name.partition)
        self.names.setdefault(key, name)
        self.keys.setdefault(name, key)
        return key

    def lost_power(self, broker: int) -> None:
        """What this machine had not synced may be gone."""
        self.weak |= {
            (broker, (topic_id, number))
            for topic_id, topic in ({} if self.image is None else self.image.topics_by_id).items()
            for number, partition in topic.partitions.items()
            if broker in partition.replicas
        }

    def _check_partition(self, key: Key, name: TopicPartition, old: Any, new: Any) -> None:
        if old is not None:
            # The assignment is a node of its own: it changes without the state's version.
            old = old._replace(
                replicas=new.replicas,
                directories=new.directories,
                adding=new.adding,
                removing=new.removing,
            )
            if old == new:
                return
        super()._check_partition(key, name, old, new)
        if old is None or new.leader < 0 or new.leader_epoch == old.leader_epoch:
            return
        if new.leader == old.leader and self.line(key).waits_for_leader:
            return  # it was counted, and may lead under that epoch before it hears of this one
        if (new.leader, key) in self.weak:  # also who led before it lost power
            if self.is_whole(new.leader, key):
                self.weak.discard((new.leader, key))
            else:
                self._elected_uncleanly(
                    key, new.leader_epoch, old.replicas, f"{name} after a loss of power: {new}"
                )


class ZooKeeperMembers(Members):
    """Who lost power is looked at first."""

    cluster: ZooKeeperCluster
    truth: ZooKeeperState

    def check_strong(self, key: Key) -> None:
        """Not of a topic that is being deleted: a broker that registers hears of its replicas
        again, also of those that it has deleted, until the topic's nodes are gone.
        """
        topic = self.truth.names[key].topic
        if f"{DELETE_TOPICS}/{topic}" not in self.cluster.ensemble.tree.nodes:
            super().check_strong(key)

    def _log_of(self, node: SimNode, key: Key) -> Mirror | None:
        found = super()._log_of(node, key)
        if (node.node_id, key) not in self.truth.weak:
            return found
        if found is not None and self.is_whole(node.node_id, key):
            self.truth.weak.discard((node.node_id, key))
            return found
        return None

    def is_whole(self, broker: int, key: Key) -> bool:
        """Whether its log holds all that was committed."""
        found = super()._log_of(self.cluster.nodes[f"n{broker}"], key)
        line = self.truth.line(key)
        return found is not None and found.end >= line.end and line.agrees(found, line.end)

    def _is_known_to(self, leader: SimNode, node: SimNode) -> bool:
        """A leader hears only who is alive: whom it counts is held to what it had."""
        return (
            node is not leader and node.broker is not None and node.broker.broker_server is not None
        )


class ZooKeeperChecker(ClusterChecker):
    """Attaches itself to the cluster."""

    cluster: ZooKeeperCluster
    truth: ZooKeeperState
    members: ZooKeeperMembers

    def __init__(self, cluster: ZooKeeperCluster) -> None:
        self._tree = TreeImage(cluster.ensemble)
        self._controller_epochs: dict[tuple[str, int], int] = {}
        super().__init__(cluster)
        self.truth.is_whole = self.members.is_whole

    def make_truth(self) -> CommittedState:
        return ZooKeeperState(lambda what: self.cluster.note("checker", what))

    def make_members(self) -> Members:
        return ZooKeeperMembers(self.cluster, self.truth)

    def gone(self, node: SimNode) -> None:
        self.members.gone(node)
        if node.lost_power:
            self.truth.lost_power(node.node_id)

    def step(self, clock: NodeClock) -> None:
        if clock is self.cluster.ensemble.clock:
            self.truth.look(self._tree.read())
        super().step(clock)

    def _look_at_metadata(self, node: SimNode) -> None:
        """What a broker believes of the cluster it hears late; but no process follows a controller
        after a later one (RL 1.3).
        """
        assert node.broker is not None
        assert isinstance(node.broker.membership, ZooKeeperMembership)
        epoch = node.broker.membership.state.controller_epoch
        known = self._controller_epochs.get((node.name, node.incarnation), 0)
        if epoch < known:
            raise Violation(f"{node.name} follows controller {epoch} after {known}")
        self._controller_epochs[node.name, node.incarnation] = epoch
