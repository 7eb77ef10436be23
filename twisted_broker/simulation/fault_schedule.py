"""Which fault hits which machine, and when.

Owns `Faults`: the table of faults, the drawing of the next one, and the repair of all.

1. Faults have a clock of their own, which never stops, and each has a `Random` of its own: another
   draw elsewhere, or another fault, does not change it. Two actors draw, side by side: the usual
   faults, and damage of what no seed had at first, which leaves the other's draws as they were.
2. In a liveness run only machines beyond n2 are hit.
3. `heal` ends every fault and starts what is down, again and again.

Source: RELIABILITY 4. Not here: which faults a seed has (`simulation/options.py`), how each works
(`simulation/faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.faults import (
    disk,
    group,
    machine,
    metadata,
    network,
    storage,
    triggered,
)
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.member import Member
from twisted_broker.simulation.node import SimNode
from twisted_broker.simulation.options import Options
from twisted_broker.simulation.reach import KINDS, Reach
from twisted_broker.simulation.schedule import Actor

FAULTS: dict[str, Callable[[FaultInjector, SimNode], None]] = {
    "kill": machine.kill,
    "power": machine.power,
    "flap": machine.flap,
    "crash": machine.crash,
    "stop": machine.stop,
    "pause": machine.pause,
    "partition": network.partition,
    "one way": network.one_way,
    "cut": network.break_connections,
    "kill before answers": network.kill_before_answers,
    "stall": disk.stall,
    "slow disk": disk.slow_disk,
    "disk error": disk.disk_error,
    "disk full": storage.fill_up,
    "no descriptors": storage.no_descriptors,
    "flip": storage.flip,
    "lose directory": storage.lose_directory,
    "stop and power": machine.stop_and_power,
    "step clock": machine.step_clock,
    "hiccup": machine.hiccup,
    "half open": network.half_open,
    "late": network.late,
    "relapse": triggered.relapse,
    "handover": triggered.handover,
    "starve": triggered.starve,
    "damage metadata": metadata.damage_metadata,
    "slow reads": disk.slow_reads,
    "slow writes": disk.slow_writes,
    "member joins": group.member_joins,
    "member leaves": group.member_leaves,
    "member crashes": group.member_crashes,
    "member stalls": group.member_stalls,
    "coordinator dies": group.coordinator_dies,
    "transaction coordinator dies": group.transaction_coordinator_dies,
}

STRUCK = [
    *(f"metadata: {name}" for name in metadata.DAMAGES),
    *(f"flip in {name}" for name in storage.CHECKED),
    *machine.CLOCK_STEPS,
    "coordinator died",
    "coordinator died amid an end",
    "markers came late",
]
"""What a fault says that it did, where it draws that."""
OPERATED = ["metadata rebuilt", "meta.properties removed"]
"""What an operator had to do about it."""

WANTED: dict[str, str] = (
    KINDS
    | {f"fault: {name}": "it struck" for name in (*FAULTS, *STRUCK)}
    | {f"by hand: {name}": "an operator did it" for name in OPERATED}
)
"""What a run of many seeds must have reached."""
RARE = {
    "fetched again": 78,
    "late commit refused": 43,
    "share leader moved under a lock": 48,
    "refused by a broker": 22,
    "fault: metadata: flip in snapshot": 16,
    "fault: metadata: flip in meta.properties": 6,
    "fault: metadata: flip in mark": 136,
    "by hand: meta.properties removed": 6,
    "fault: flip in log": 40,
    "fault: flip in index": 91,
    "fault: flip in timeindex": 91,
    "fault: flip in snapshot": 24,
    "fault: flip in clean shutdown": 75,
    "fault: flip in metadata": 40,
}
"""What a hundred seeds reach by luck only -> a seed that reaches it: a run in which no other did
has that one in addition.
"""


class Faults:
    """Draws what goes wrong next, from its making until `heal`."""

    table = FAULTS

    def __init__(
        self,
        cluster: SimCluster,
        options: Options,
        reach: Reach,
        actor: Callable[[str], Actor],
        members: Sequence[Member],
    ) -> None:
        self.cluster, self.options, self._reach = cluster, options, reach
        self.injector = FaultInjector(cluster, options)
        self.injector.struck, self.injector.counted = reach.fault, reach.count
        self.injector.by_hand, self.injector.members = reach.by_hand, members
        self.clock = self.injector.clock
        self._await_next(actor("faults"), lambda random: 3 + random.random() * 3)
        if options.damages:
            self._await_next(actor("damages"), lambda random: 4 + random.random() * 8)
        self.begin(actor)

    def begin(self, actor: Callable[[str], Actor]) -> None:
        """Further actors."""

    def _await_next(self, actor: Actor, gap: Callable[[Random], float]) -> None:
        following = actor.next(self.clock.seconds(), gap)
        if following is not None:
            self.clock.callLater(following[0], self._strike, actor, following[1])

    def _strike(self, actor: Actor, random: Random) -> None:
        kind = random.choice(self._kinds(actor))
        victim = random.choice(self._victims(actor))
        actor.acts(f"{kind} {victim}")
        if self.injector.ended:
            return
        if not self.injector.held:
            self._reach.fault(kind)
            self.table[kind](self.injector.drawing_from(random), self.cluster.nodes[victim])
        self._await_next(actor, partial(self._pause, actor))

    def _kinds(self, actor: Actor) -> list[str]:
        return self.options.faults if actor.name == "faults" else self.options.damages

    def _victims(self, actor: Actor) -> list[str]:
        return self.injector.victims

    def _pause(self, actor: Actor, random: Random) -> float:
        return self._gap(random) if actor.name == "faults" else self._damage_gap(random)

    def _gap(self, random: Random) -> float:
        if random.random() < self.options.burst_chance:
            return random.random() ** 2
        return random.expovariate(1 / self.options.fault_seconds)

    def _damage_gap(self, random: Random) -> float:
        return 1 + random.expovariate(1 / self.options.damage_seconds)

    def heal(self) -> None:
        """Everything works from now on; what is down starts."""
        self.injector.end()
        self.injector.note("all faults end")
        self.cluster.network.heal()
        self.cluster.network.hurry()
        for node in self.cluster.nodes.values():
            disk.repair(node)
            if node.clock.paused:
                node.resume()
            if node.stalled:
                node.resume_disk()
        self._start_all()

    def _start_all(self) -> None:
        """Again and again: a broker may end itself over an old fault, or be on its way out."""
        for node in self.cluster.nodes.values():
            if node.broker is not None and node.broker.log_manager.directories.offline():
                node.kill()
            if not node.is_up:
                node.start()
        self.clock.callLater(2.0, self._start_all)
