"""One simulated run of a cluster in ZooKeeper mode.

Owns `ZooKeeperRun`: what is other than in a run with a metadata log.

Not here: the run itself (`simulation/run.py`), what a seed means
(`simulation/zookeeper/options.py`).
"""

from __future__ import annotations

from twisted_broker.simulation.fault_schedule import Faults
from twisted_broker.simulation.run import Run
from twisted_broker.simulation.zookeeper.admin import ZooKeeperAdmin
from twisted_broker.simulation.zookeeper.checks import ZooKeeperChecker
from twisted_broker.simulation.zookeeper.cluster import ZooKeeperCluster
from twisted_broker.simulation.zookeeper.faults import ZooKeeperFaults
from twisted_broker.simulation.zookeeper.reach import ZooKeeperProbes, ZooKeeperReach
from twisted_broker.simulation.zookeeper.reassignments import REASSIGN
from twisted_broker.simulation.zookeeper.topic_deletions import DELETE_TOPICS

_METADATA_MAX_AGE_SECONDS = 60.0
"""of the 120 s in which a cluster heals"""


class ZooKeeperRun(Run):
    """See the module's card."""

    cluster: ZooKeeperCluster

    def make_reach(self) -> ZooKeeperReach:
        return ZooKeeperReach()

    def make_cluster(self, trace: bool) -> ZooKeeperCluster:
        options = self.options
        return ZooKeeperCluster(
            options.seed,
            options.brokers,
            options.settings,
            options.conditions,
            options.zookeeper,
            self.reach.count,
            shuffle=options.shuffle,
            trace=trace,
        )

    def make_checker(self) -> ZooKeeperChecker:
        return ZooKeeperChecker(self.cluster)

    def make_probes(self) -> ZooKeeperProbes:
        return ZooKeeperProbes(self.reach, self.checker.replacing, self.checker.taking)

    def make_faults(self) -> ZooKeeperFaults:
        return ZooKeeperFaults(
            self.cluster, self.options, self.reach, self.schedule.actor, self.members
        )

    def make_admin(self) -> ZooKeeperAdmin:
        admin = ZooKeeperAdmin(*self._client_machine("admin"), self.notes)
        admin.cluster = self.cluster
        return admin

    def heal(self, faults: Faults) -> None:
        """A broker whose session ended may have missed that a partition left it, and serves it on
        until it restarts: its clients come to another leader when they ask for metadata again, as
        they do every few minutes.
        """
        super().heal(faults)
        faults.clock.callLater(_METADATA_MAX_AGE_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        image = self.checker.truth.image
        for consumer in self.consumers:
            name = consumer.partition
            leader, _ = consumer.leaders.get(name, (-1, -1))
            known = None if image is None else image.partition(name.topic, name.partition)
            if known is not None and leader not in known.replicas:
                consumer.forget_leader(name)

    def what_is_missing(self) -> str:
        tree = self.cluster.ensemble.tree
        for path in (DELETE_TOPICS, REASSIGN):
            if path in tree.nodes and tree.children(path):
                return f"{path} still has {tree.children(path)}"
        return super().what_is_missing()
