"""One simulated run of a cluster with three controllers.

Owns `QuorumRun`: what is other than in a run with one.

Not here: the run itself (`simulation/run.py`), what a seed means (`quorum/options.py`).
"""

from __future__ import annotations

from twisted_broker.simulation.quorum.checks import QuorumChecker
from twisted_broker.simulation.quorum.faults import QuorumFaults
from twisted_broker.simulation.quorum.reach import QuorumProbes, QuorumReach
from twisted_broker.simulation.run import Run


class QuorumRun(Run):
    """See the module's card."""

    checker: QuorumChecker

    def make_reach(self) -> QuorumReach:
        return QuorumReach()

    def make_checker(self) -> QuorumChecker:
        return QuorumChecker(self.cluster, int(self.options.settings["broker.session.timeout.ms"]))

    def make_probes(self) -> QuorumProbes:
        checker = self.checker
        return QuorumProbes(
            checker.session_lapsed,
            self.reach,
            checker.replacing,
            checker.taking,
            self._markers_sent,
        )

    def make_faults(self) -> QuorumFaults:
        return QuorumFaults(
            self.cluster, self.options, self.reach, self.schedule.actor, self.members
        )
