"""The base of all faults: the machines they may hit, their randomness and clock, and the repair.

Owns `FaultInjector`. A fault is a function `(injector, node)`: it hits a machine
now, and schedules the repair, which runs even when all faults have ended meanwhile. Not here: which
fault comes when (`simulation/fault_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from random import Random
from typing import TYPE_CHECKING, Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.node import SimNode
from twisted_broker.simulation.options import Options

if TYPE_CHECKING:
    from twisted_broker.coordinator.transaction.transaction_marker_sender import (
        TransactionMarkerSender,
    )
    from twisted_broker.simulation.member import Member


class FaultInjector:
    """What one fault needs; `drawing_from` gives the next one its own.

    `ended`: nothing new goes wrong any more. `victims`: the names of machines that may be struck.
    `struck(what)` is called with what a fault did, where that is drawn; `counted(kind)` with what
    came of it; `by_hand(what)` with what an operator had to do about it. `seconds`: when all faults
    end. `has_version_1`: whether there are producers of transaction version 1. `compacted`: the
    topics of clients that are.
    """

    def __init__(self, cluster: SimCluster, options: Options) -> None:
        self.cluster = cluster
        self.random = Random(f"faults {options.seed}")
        self.clock: Any = cluster.client_runtime("faults").clock
        self._ends: list[float] = []
        """when all faults ended; shared by the injectors of all faults"""
        self._holds: list[str] = []
        """why none strikes now; shared as well"""
        self.rescues: list[str] = []
        """what an operator attends to now; shared as well"""
        self.struck: Callable[[str], None] = lambda what: None
        self.counted: Callable[[str], None] = lambda kind: None
        self.by_hand: Callable[[str], None] = lambda what: None
        self.members: Sequence[Member] = ()
        self.at_markers: list[Callable[[TransactionMarkerSender], bool]] = []
        """what strikes whoever sends markers of a transaction next, unless it says that it did not;
        shared as well
        """
        self.late_markers: list[str] = []
        """whose markers are under way for a while; shared as well"""
        self.seconds = float(options.seconds)
        self.compacted = {topic.name for topic in options.compacted}
        self.has_version_1 = 1 in options.transactional
        names = list(cluster.nodes)
        apart = options.controllers if options.controller_only else 0
        self.victims = names[2 + apart :] if options.liveness else names
        self.producers = [f"p{number}" for number in range(len(options.idempotent))]

    @property
    def ended(self) -> bool:
        return bool(self._ends)

    @property
    def held(self) -> bool:
        """No fault strikes now: an operator is at work, with machines as they are."""
        return bool(self._holds)

    def hold(self, why: str) -> None:
        self._holds.append(why)

    def release(self) -> None:
        self._holds.clear()

    def end(self) -> None:
        self._ends.append(self.clock.seconds())

    def drawing_from(self, random: Random) -> FaultInjector:
        """The same for a fault that draws from this generator, now and later."""
        made = copy(self)
        made.random = random
        return made

    def markers_sent(self, sender: TransactionMarkerSender) -> None:
        """Those of a transaction that was just decided are on their way."""
        self.at_markers[:] = [strike for strike in self.at_markers if not strike(sender)]

    def note(self, what: str) -> None:
        self.cluster.note("faults", what)

    def schedule(self, call: Callable[[], None], seconds: float = 8.0) -> None:
        """Within so many seconds, rather sooner than later."""
        # Squared: most faults come close together, where a repair of one is not done yet.
        self.clock.callLater(self.random.random() ** 2 * seconds, call)

    def restart(self, node: SimNode) -> None:
        """Starts what is down."""
        if not node.is_up and not self.ended:
            node.start()

    def pause_for(self, node: SimNode, seconds: float) -> None:
        if node.is_up and not node.clock.paused and not self.ended:
            clock = node.clock
            node.pause()
            self.clock.callLater(seconds, lambda: resume(node, clock))


def resume(node: SimNode, clock: NodeClock) -> None:
    """Ends the pause of a process, unless another one runs on the machine now."""
    if node.clock is clock and clock.paused:
        node.resume()


def partitions(node: SimNode) -> dict[TopicPartition, Any]:
    """What a machine's broker holds; nothing while it does not run."""
    manager = None if node.broker is None else node.broker.parts.replica_manager
    return {} if manager is None else manager.partitions
