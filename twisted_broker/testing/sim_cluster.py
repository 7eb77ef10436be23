"""A cluster of production brokers and our controller in one thread, under one seed.

Owns `SimCluster` and its machines: each has a clock, a disk, a place on the network and a seeded `Random`, and runs a `Broker`.

1. A machine is started, killed (its files stay as the process saw them), left without power (what was not synced may be lost, torn), stopped in
   order, paused. A broker that ends itself (its disk failed, the log cannot be followed) is a dead process.
2. Nothing of a process happens after its death; the next one on the machine knows only the disk.
3. A failure that the production code logs is a bug here: it goes to `bug(text)`.

Source: docs/ARCHITECTURE.md 1 (four ports), the simulations of FoundationDB and TigerBeetle. Leaves out: which faults when (`simulate`),
what must hold (`checkers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from twisted_broker.broker import STARTING_ERRORS, Broker
from twisted_broker.config import SAMPLE_VALUES, BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.testing.sim_clock import NodeClock, SimCall, SimClock
from twisted_broker.testing.sim_disk import Crash, SimDisk, StallingWorker
from twisted_broker.testing.sim_network import SimNetwork, Weather

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
CLIENT_PORT, CONTROLLER_PORT = 9092, 9093


class Trace:
    """What happened, a line each; kept only when somebody wants to read it."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.lines: list[str] = []

    def note(self, now: float, who: str, what: str) -> None:
        if self.wanted:
            self.lines.append(f"{now:11.6f} {who:8} {what}")


class SimNode:
    """One machine. `broker` is None while no process runs; `incarnation` counts processes."""

    def __init__(self, cluster: SimCluster, node_id: int, settings: Mapping[str, str]) -> None:
        self.cluster, self.node_id, self.name = cluster, node_id, f"n{node_id}"
        self.settings = settings
        self.disk = SimDisk(cluster.random.randrange(1 << 30))
        self.skew_ms = cluster.random.randrange(-2000, 2000)
        self.broker: Broker | None = None
        self.clock = NodeClock(cluster.sim, self.name, self.skew_ms)
        self.workers: list[StallingWorker] = []
        self.incarnation = 0
        self.ready = self.stopping = self.lost_power = False
        self.disk_delay_ms = (0, 2)
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
        cluster, sim = self.cluster, self.cluster.sim
        self.incarnation += 1
        self.ready = self.stopping = self.stalled = False
        if self.lost_power:
            self.disk, self.lost_power = self.disk.after_power_loss(keep=cluster.random.choice((0.0, 0.5, 0.9))), False
        self.disk._locks.clear()
        self.disk.faults.clear()
        self.disk.crash_at = None
        self.disk.crashed = self._power_is_gone
        clock = self.clock = NodeClock(sim, self.name, self.skew_ms)
        self.workers = []
        random = Random(f"{cluster.seed} {self.name} {self.incarnation}")
        runtime = Runtime(clock, clock.wall_ms, cluster.network.switch_on(clock), self.disk, self._worker, random)
        cluster.note(self.name, f"starts, process {self.incarnation}")
        clock.callLater(0, self._boot, runtime)

    def _worker(self, directory: str) -> StallingWorker:
        random = Random(f"{self.cluster.seed} {self.name} {self.incarnation} {directory}")
        made = StallingWorker(self.clock, lambda: random.randint(*self.disk_delay_ms))
        self.workers.append(made)
        return made

    def _boot(self, runtime: Runtime) -> None:
        incarnation = self.incarnation
        broker = self.broker = Broker(BrokerConfig(dict(self.settings)), runtime, CLUSTER_ID)
        broker.fatal = lambda reason: self._ended(incarnation, f"fatal: {reason}")
        ensureDeferred(broker.start()).addCallbacks(self._started, self._not_started, (incarnation,), {}, (incarnation,), {})

    def _started(self, _: None, incarnation: int) -> None:
        if incarnation == self.incarnation and self.broker is not None:
            self.ready = True
            self.cluster.note(self.name, "ready")

    def _not_started(self, failure: Failure, incarnation: int) -> None:
        if failure.check(Crash) or incarnation != self.incarnation or self.broker is None or self.stopping:
            return
        if not failure.check(*STARTING_ERRORS):
            self.cluster.bug(f"{self.name} could not start: {failure.getTraceback()}")
        self._ended(incarnation, f"did not start: {failure.getErrorMessage()}")

    def _ended(self, incarnation: int, why: str) -> None:
        if incarnation == self.incarnation and self.broker is not None:
            self.cluster.note(self.name, why)
            self.kill()

    def kill(self) -> None:
        """The process is gone; the machine and its files stay."""
        self.cluster.note(self.name, "killed")
        self._gone(silent=False)

    def lose_power(self) -> None:
        """The machine stops; what was not synced may be lost when it comes back."""
        self.cluster.note(self.name, "loses power")
        self.lost_power = True
        self._gone(silent=True)

    def _power_is_gone(self) -> None:
        if self.broker is not None:
            self.lose_power()

    def _gone(self, silent: bool) -> None:
        self.clock.switch_off()
        self.cluster.network.switch_off(self.name, silent)
        self.broker = None
        self.ready = False
        self.cluster.gone(self)

    def stop(self) -> None:
        """The process leaves in order (SIGTERM)."""
        if self.broker is None or self.stopping:
            return
        self.cluster.note(self.name, "is told to stop")
        self.stopping, incarnation = True, self.incarnation
        self.clock.callLater(0, self._stop, incarnation)

    def _stop(self, incarnation: int) -> None:
        assert self.broker is not None
        self._leave(self.broker.stop()).addBoth(lambda _: self._ended(incarnation, "stopped"))

    @staticmethod
    def _leave(stopping: Any) -> Deferred[None]:
        return ensureDeferred(stopping)

    def pause(self) -> None:
        self.cluster.note(self.name, "paused")
        self.clock.pause()

    def go_on(self) -> None:
        self.cluster.note(self.name, "goes on")
        self.clock.go_on()

    def stall_disk(self) -> None:
        self.cluster.note(self.name, "disk stalls")
        self.stalled = True
        for worker in self.workers:
            worker.stalled = True

    def resume_disk(self) -> None:
        self.cluster.note(self.name, "disk goes on")
        self.stalled = False
        for worker in self.workers:
            worker.resume()


class SimCluster:
    """`brokers` machines n1, n2 ..; n1 is the controller too. `after_step(clock)` is told after each call, `bug(text)` of logged failures."""

    def __init__(self, seed: int, brokers: int, settings: Mapping[str, str], weather: Weather, *, shuffle: bool, trace: bool = False) -> None:
        self.seed = seed
        self.random = Random(f"cluster {seed}")
        self.sim = SimClock(seed, shuffle)
        self.sim.after, self.sim.failed = self._stepped, self._raised
        self.network = SimNetwork(self.sim, Random(f"network {seed}"), weather)
        self.trace = Trace(trace)
        self.after_step: Callable[[NodeClock], None] = lambda clock: None
        self.gone: Callable[[SimNode], None] = lambda node: None
        self.bugs: list[str] = []
        self.nodes = {f"n{number}": SimNode(self, number, self._settings(number, brokers, settings)) for number in range(1, brokers + 1)}
        self._clients = 0

    @staticmethod
    def _settings(number: int, brokers: int, settings: Mapping[str, str]) -> dict[str, str]:
        values = dict(SAMPLE_VALUES) | {"node.id": str(number), "log.dirs": "/data", "offsets.topic.num.partitions": "2"}
        values["listeners"] = f"PLAINTEXT://n{number}:{CLIENT_PORT}"
        if number == 1:
            values["listeners"] += f",CONTROLLER://n1:{CONTROLLER_PORT}"
        else:
            values |= {"process.roles": "broker", "controller.quorum.bootstrap.servers": f"n1:{CONTROLLER_PORT}"}
        values["offsets.topic.replication.factor"] = str(min(3, brokers))
        return values | dict(settings)

    # life

    def __enter__(self) -> SimCluster:
        globalLogPublisher.addObserver(self._logged)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: object) -> None:
        globalLogPublisher.removeObserver(self._logged)  # type: ignore[arg-type]

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def client_runtime(self, name: str) -> Runtime:
        """A machine for clients: never killed, without a disk."""
        clock = NodeClock(self.sim, name)
        network, random = self.network.switch_on(clock), Random(f"{self.seed} {name}")
        return Runtime(clock, clock.wall_ms, network, SimDisk(), lambda directory: StallingWorker(clock), random)

    def run_until(self, when: float) -> None:
        self.sim.run_until(when)

    # what happens

    def note(self, who: str, what: str) -> None:
        self.trace.note(self.sim.now, who, what)

    def bug(self, text: str) -> None:
        self.note("bug", text)
        self.bugs.append(text)

    def _stepped(self, clock: NodeClock, call: SimCall) -> None:
        if self.trace.wanted:
            self.trace.note(self.sim.now, clock.name, repr(call))
        self.after_step(clock)

    def _raised(self, clock: NodeClock, call: SimCall, error: BaseException) -> None:
        if not clock.dead:
            self.bug(f"{clock.name}: {call!r} raised {Failure(error).getTraceback()}")

    def _logged(self, event: LogEvent) -> None:
        running = self.sim.running
        if running is None or running.dead:
            return
        failure = event.get("log_failure")
        if failure is not None and not failure.check(Crash):
            self.bug(f"{running.name} logged: {formatEvent(event)}\n{failure.getTraceback()}")
        elif self.trace.wanted and event["log_level"] >= LogLevel.info:
            self.note(running.name, f"log: {formatEvent(event)}")
