"""Members of an ISR must hold all that was exposed.

Owns `Seen`, one partition on one machine as of its last step, and `Members`, all of them.

A broker counts as a member while it runs under the broker epoch that is registered: one that
restarted may have lost data, and its registration takes it out.

Source: RELIABILITY 2.2 (WeakIsr, StrongIsr). Not here: what one replica must be by itself
(`simulation/checks/replicas.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.checks.committed_state import CommittedState, Key, Violation
from twisted_broker.simulation.checks.replica_contents import Mirror
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.node import SimNode


class Seen:
    """One partition on one machine as of its last step. -1 and None: not looked at yet."""

    __slots__ = (
        "end",
        "high_watermark",
        "isr_state",
        "key",
        "leader_epoch",
        "leads",
        "log",
        "log_start",
        "min_isr",
        "mirror",
        "partition",
        "truncations",
    )

    def __init__(self, partition: Partition, key: Key, log: Any, mirror: Mirror) -> None:
        self.partition, self.key, self.log, self.mirror = partition, key, log, mirror
        self.truncations = self.end = self.high_watermark = self.leader_epoch = -1
        self.isr_state: Any = None
        self.min_isr = self.log_start = 0
        self.leads = False


class Members:
    """`seen`: the name of a machine -> its partitions."""

    def __init__(self, cluster: SimCluster, truth: CommittedState) -> None:
        self.cluster, self.truth = cluster, truth
        self.seen: dict[str, dict[TopicPartition, Seen]] = {name: {} for name in cluster.nodes}

    def gone(self, node: SimNode) -> None:
        """The process on this machine ended."""
        self.seen[node.name] = {}

    def check_strong(self, key: Key) -> None:
        """StrongIsr: what was exposed is on everybody who can be elected cleanly."""
        registration, line = self.truth.registration(key), self.truth.line(key)
        if registration is None or line.waits_for_leader or not line.ends:
            return
        for member in registration.isr:
            found = self._log_of(self.cluster.nodes[f"n{member}"], key)
            if found is not None and (
                found.end < line.end_to_hold(line.end) or not line.agrees(found, line.end)
            ):
                raise Violation(
                    f"{self.truth.names[key]}: n{member} is in the ISR {registration.isr} "
                    f"(partition epoch {registration.partition_epoch}), ends at"
                    f" {found.end}, and lacks what was committed up to {line.end}"
                )

    def check_weak(self, leader: SimNode, seen: Seen, mark: int, where: str) -> None:
        """WeakIsr: what a leader exposes is on all members of the ISR as it knows it, of which
        it knows that they run.
        """
        key = seen.key
        line = self.truth.line(key)
        registration = self.truth.registration(key)
        for member in sorted(seen.partition.isr_state.isr):
            if registration is not None and (
                member in registration.adding or member not in registration.replicas
            ):
                continue  # what it held was deleted in a reassignment that the leader missed
            node = self.cluster.nodes[f"n{member}"]
            found = self._log_of(node, key) if self._is_known_to(leader, node) else None
            if found is not None and (
                found.end < line.end_to_hold(mark)
                or not found.agrees(seen.mirror, mark, line.floor)
            ):
                raise Violation(
                    f"{where}: its high watermark is {mark}, but member n{member} does not "
                    f"hold that, it ends at {found.end}"
                )

    def _log_of(self, node: SimNode, key: Key) -> Mirror | None:
        """The log of a broker that runs under its registered epoch; None when there is nothing
        to hold it to.
        """
        server = None if node.broker is None else node.broker.broker_server
        if server is None or self.truth.image is None:
            return None
        registered = self.truth.image.brokers.get(node.node_id)
        if registered is None or registered.epoch != server.lifecycle.broker_epoch:
            return None
        seen = self.seen[node.name].get(self.truth.names[key])
        return None if seen is None or seen.key != key or seen.partition.offline else seen.mirror

    def _is_known_to(self, leader: SimNode, node: SimNode) -> bool:
        """Whether another broker runs under the epoch that the leader's image has of it."""
        if (
            node is leader
            or leader.broker is None
            or leader.broker.broker_server is None
            or node.broker is None
            or node.broker.broker_server is None
        ):
            return False
        known = leader.broker.broker_server.observer.image.brokers.get(node.node_id)
        return known is not None and known.epoch == node.broker.broker_server.lifecycle.broker_epoch
