"""Invariants of a cluster, checked after every step of a simulated run.

Owns `ClusterChecker`: which rules are checked when.

1. A step costs a comparison of a few numbers per partition of the machine that ran; only what
   changed is checked.
2. A violation raises `Violation`: the run ends there, at the step that broke the rule.

Source: RL 9; RELIABILITY 2.2, 2.4. Not here: the rules (`simulation/checks/committed_state.py`,
`simulation/checks/replicas.py`, `simulation/checks/isr_members.py`), the answers to clients
(`simulation/checks/clients.py`, `simulation/checks/transactions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted_broker.cluster.controller import Controller
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.checks.committed_state import CommittedState, Violation
from twisted_broker.simulation.checks.isr_members import Members, Seen
from twisted_broker.simulation.checks.replica_contents import Mirror
from twisted_broker.simulation.checks.replicas import ReplicaChecker
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.node import SimNode


class ClusterChecker:
    """Attaches itself to the cluster."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.truth = self.make_truth()
        self.members = self.make_members()
        self.replicas = ReplicaChecker(self.truth, self.members)
        self.compacted = self.replicas.compacted
        self._cleaned: list[Log] = []
        self._ended: list[Controller] = []
        """processes ended with them: not looked at yet"""
        self.broken = ""
        """what a client's check found: it cannot raise through the client"""
        cluster.after_step, cluster.gone = self.step, self.gone

    def make_truth(self) -> CommittedState:
        """What is true of this cluster."""
        return CommittedState(lambda what: self.cluster.note("checker", what))

    def make_members(self) -> Members:
        """Who holds what of it."""
        return Members(self.cluster, self.truth)

    def step(self, clock: NodeClock) -> None:
        """A call ran on the machine of this clock."""
        if self.cluster.bugs:
            raise Violation(self.cluster.bugs[0])
        if self.broken or self.compacted.broken:
            raise Violation(self.broken or self.compacted.broken)
        while self._ended:
            self.truth.look(self._ended.pop().committed)
        node = self.cluster.nodes.get(clock.name)
        if node is not None and node.clock is clock and node.broker is not None:
            self._look_at(node)

    def gone(self, node: SimNode) -> None:
        """The process on this machine ends, perhaps in the call in which its controller committed
        something and told others.
        """
        controller = None if node.broker is None else node.broker.parts.controller
        if controller is not None and not node.suspect:
            self._ended.append(controller)
        self.members.gone(node)

    def _look_at(self, node: SimNode) -> None:
        assert node.broker is not None
        parts, touched = node.broker.parts, self.truth.touched
        self._look_at_metadata(node)
        if parts.replica_manager is not None:
            seen = self.members.seen[node.name]
            if self._cleaned:
                self._check_cleaned(node, seen)
            for name, partition in parts.replica_manager.partitions.items():
                log = partition.log
                if log is not None and not partition.offline:
                    self._look(node, seen, name, partition, log)
                if partition.listeners:
                    self.replicas.check_idle(node, partition)
        if touched:
            for key in sorted(touched):
                self.members.check_strong(key)
            touched.clear()

    def _look_at_metadata(self, node: SimNode) -> None:
        assert node.broker is not None
        parts = node.broker.parts
        if parts.controller is not None and not node.suspect:
            controller = parts.controller
            self.truth.decided(controller, controller.uncommitted)
            self.truth.look(controller.committed)
        if parts.metadata is not None:
            self.truth.applied(node.name, parts.metadata.image)

    def taking(self, log: Log, upto: int) -> None:
        """A cleaner that knew all records below `upto` is about to replace segments of a log."""
        for known in self.members.seen.values():
            for seen in known.values():
                if seen.log is log:
                    self.compacted.taking(seen.key, upto)

    def replacing(self, log: Log, bases: Sequence[int]) -> None:
        """A cleaner's segments are about to replace these; after the step the log is looked at."""
        for known in self.members.seen.values():
            for seen in known.values():
                if seen.log is log:
                    self.compacted.replacing(seen.key, log, bases, self.cluster.sim.now)
                    self._cleaned.append(log)

    def _check_cleaned(self, node: SimNode, known: Mapping[TopicPartition, Seen]) -> None:
        cleaned, self._cleaned = self._cleaned, []
        for seen in known.values():
            if any(seen.log is log for log in cleaned):
                where = f"{node.name} {seen.partition!r}"
                self.compacted.check(seen.key, seen.log, node.disk, self.cluster.sim.now, where)

    def _look(
        self,
        node: SimNode,
        known: dict[TopicPartition, Seen],
        name: TopicPartition,
        partition: Partition,
        log: Log,
    ) -> None:
        # Most of a run's checks end here: the parts of the log, not its properties, are read.
        seen = known.get(name)
        if seen is None or seen.partition is not partition or seen.log is not log:
            key = self.truth.key_of(partition)
            seen = known[name] = Seen(partition, key, log, Mirror(log, node.disk))
            if key in self.compacted.lines and self.truth.line(key).cleaned_upto:
                self.compacted.check(key, log, node.disk, self.cluster.sim.now, node.name)
        if seen.end != log.segments.log_end_offset or seen.truncations != log.truncations:
            self.replicas.log_changed(node, seen)
        leads, watermarks = partition.leader_log is not None, log.watermarks
        if (
            seen.high_watermark != watermarks.high_watermark
            or seen.leader_epoch != partition.leader_epoch
            or seen.leads != leads
            or seen.isr_state is not partition.isr_state
            or seen.log_start != watermarks.log_start_offset
        ):
            self.replicas.state_changed(node, seen, leads)
