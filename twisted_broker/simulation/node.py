"""One machine of a simulated cluster: a clock, a disk, a place on the network and a seeded
`Random`, and the broker that runs on it.

Owns `SimNode`; `Refusal`, why a process ended by itself, or did not start.

1. A machine is started, killed (its files stay as the process saw them), left without power (what
   was not synced may be lost, torn), stopped in order, paused. A broker that ends itself (its disk
   failed, the log cannot be followed) is a dead process.
2. Nothing of a process happens after its death; the next one on the machine knows only the disk.

Source: docs/ARCHITECTURE.md 3 (four ports). Not here: which faults when
(`simulation/fault_schedule.py`), the machines together (`simulation/cluster.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.server.kafka_server import STARTING_ERRORS, KafkaServer
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.simulation.world import SimWorld

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
QUICK_DISK_MS = (0, 2)
"""(least, most) that a job on a disk takes where nothing is slow"""


class Refusal(NamedTuple):
    """`incarnation`: of the process."""

    incarnation: int
    why: str


class SimNode:
    """One machine. `broker` is None while no process runs; `incarnation` counts processes."""

    def __init__(self, world: SimWorld, node_id: int, settings: Mapping[str, str]) -> None:
        self.world, self.node_id, self.name = world, node_id, f"n{node_id}"
        self.settings = settings
        self.disk = SimDisk(world.random.randrange(1 << 30))
        self.skew_ms = world.random.randrange(-2000, 2000)
        self.broker: KafkaServer | None = None
        self.clock = NodeClock(world.sim, self.name, self.skew_ms)
        self.workers: list[StallingWorker] = []
        self.incarnation = 0
        self.ready = self.stopping = self.lost_power = False
        self.cluster_id: str | None = CLUSTER_ID
        """what it is started with; None: as its directory says"""
        self.suspect = False
        """its metadata is not the cluster's: an older copy, or none at all"""
        self.refusals: list[Refusal] = []
        """why processes did not start, or ended themselves; whoever attends to them clears it"""
        self.disk_delay_ms = QUICK_DISK_MS
        self.stalled = False

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    @property
    def healthy(self) -> bool:
        return self.ready and not self.clock.paused and not self.stopping and not self.stalled

    def start(self) -> None:
        """A new process on this machine's disk."""
        assert self.broker is None
        world = self.world
        self.incarnation += 1
        self.ready = self.stopping = self.stalled = False
        self.at_rest()
        # A new clock: calls of the process before stay with the old one, which is dead.
        clock = self.clock = NodeClock(world.sim, self.name, self.skew_ms)
        self.workers = []
        random = Random(f"{world.seed} {self.name} {self.incarnation}")
        runtime = Runtime(
            clock, clock.wall_ms, world.network.switch_on(clock), self.disk, self._worker, random
        )
        world.note(self.name, f"starts, process {self.incarnation}")
        clock.callLater(0, self._boot, runtime)

    def at_rest(self) -> SimDisk:
        """While no process runs: what the last one left, or what a loss of power left of that;
        nothing fails any more.
        """
        if self.lost_power:
            self.disk, self.lost_power = (
                self.disk.after_power_loss(keep=self.world.random.choice((0.0, 0.5, 0.9))),
                False,
            )
        self.disk._locks.clear()
        self.disk.faults.clear()
        self.disk.crash_at = None
        self.disk.crashed = self._power_is_gone
        self.disk.is_in_worker = lambda: any(worker.in_job for worker in self.workers)
        return self.disk

    def _worker(self, directory: str) -> StallingWorker:
        random = Random(f"{self.world.seed} {self.name} {self.incarnation} {directory}")
        made = StallingWorker(self.clock, lambda: random.randint(*self.disk_delay_ms))
        self.workers.append(made)
        return made

    def _boot(self, runtime: Runtime) -> None:
        incarnation = self.incarnation
        try:
            broker = self.broker = self.make_broker(
                runtime, lambda reason: self._ended(incarnation, f"fatal: {reason}")
            )
        except STARTING_ERRORS as error:
            why = f"did not start: {error}"
            self.refusals.append(Refusal(incarnation, why))
            self._gone(silent=False)
            self.world.note(self.name, why)
            return
        ensureDeferred(broker.start()).addCallbacks(
            self._started, self._not_started, (incarnation,), {}, (incarnation,), {}
        )

    def make_broker(self, runtime: Runtime, on_fatal: Callable[[str], None]) -> KafkaServer:
        """Raises `STARTING_ERRORS`."""
        return KafkaServer(
            BrokerConfig(dict(self.settings)), runtime, self.cluster_id, on_fatal=on_fatal
        )

    def _started(self, _: None, incarnation: int) -> None:
        if incarnation == self.incarnation and self.broker is not None:
            self.ready = True
            self.world.note(self.name, "ready")

    def _not_started(self, failure: Failure, incarnation: int) -> None:
        if (
            failure.check(Crash)
            or incarnation != self.incarnation
            or self.broker is None
            or self.stopping
        ):
            return
        if not failure.check(*STARTING_ERRORS):
            self.world.bug(f"{self.name} could not start: {failure.getTraceback()}")
        self._ended(incarnation, f"did not start: {failure.getErrorMessage()}")

    def _ended(self, incarnation: int, why: str) -> None:
        if incarnation == self.incarnation and self.broker is not None:
            self.world.note(self.name, why)
            if not self.stopping:
                self.refusals.append(Refusal(incarnation, why))
            self.kill()

    def kill(self) -> None:
        """The process is gone; the machine and its files stay."""
        self.world.note(self.name, "killed")
        self._gone(silent=False)

    def lose_power(self) -> None:
        """The machine stops; what was not synced may be lost when it comes back."""
        self.world.note(self.name, "loses power")
        self.lost_power = True
        self._gone(silent=True)

    def _power_is_gone(self) -> None:
        if self.broker is not None:
            self.lose_power()

    def _gone(self, silent: bool) -> None:
        # The clock first: nothing of this process may run while its connections are reset.
        self.clock.switch_off()
        self.world.network.switch_off(self.name, silent)
        self.world.gone(self)
        self.broker = None
        self.ready = False

    def stop(self) -> None:
        """The process leaves in order (SIGTERM)."""
        if self.broker is None or self.stopping:
            return
        self.world.note(self.name, "is stopped in order")
        self.stopping, incarnation = True, self.incarnation
        self.clock.callLater(0, self._stop, incarnation)

    def _stop(self, incarnation: int) -> None:
        assert self.broker is not None
        left: Deferred[Any] = ensureDeferred(self.broker.stop())
        left.addBoth(lambda _: self._ended(incarnation, "stopped"))

    def pause(self) -> None:
        self.world.note(self.name, "paused")
        self.clock.pause()

    def resume(self) -> None:
        self.world.note(self.name, "goes on")
        self.clock.resume()

    def stall_disk(self) -> None:
        self.world.note(self.name, "disk stalls")
        self.stalled = True
        for worker in self.workers:
            worker.stalled = True

    def resume_disk(self) -> None:
        self.world.note(self.name, "disk goes on")
        self.stalled = False
        for worker in self.workers:
            worker.resume()
