"""`make simulate`: runs of a whole cluster under seeds, with faults, until a rule is broken or everything has healed.

Owns `Options`, what a seed means; `Faults`, what goes wrong when; `run_seed`; the command line.

1. A seed expands to options, and options and seed to the run: nothing else has a say. A failing seed prints both.
2. Safety seeds: faults anywhere, any time. Liveness seeds: n1 (with the controller) and n2 stay healthy, and producers must get on.
3. Then everything heals; within a bounded time all replicas are back in their ISRs, and the logs are equal.

Source: RELIABILITY 4; the simulations of FoundationDB and TigerBeetle. Leaves out: the rules (`checkers`).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, TextIO

from twisted.internet.defer import ensureDeferred
from twisted.logger import globalLogBeginner

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.isr import PendingExpand
from twisted_broker.testing.checkers import ClientChecker, ClusterChecker, Violation
from twisted_broker.testing.sim_cluster import CLIENT_PORT, CONTROLLER_PORT, SimCluster, SimNode
from twisted_broker.testing.sim_network import Weather
from twisted_broker.testing.workload import Admin, Consumer, History, Producer

_HEAL_SECONDS = 120
_PATIENCE_SECONDS = 10
_STALLED_FOR = 45.0
_RELAPSE_LOOK_SECONDS, _RELAPSE_LOOKS = 0.0005, 6000
_HANDOVER_LOOKS = 3000
_ALL_FAULTS = ("kill", "power", "flap", "crash", "stop", "pause", "handover", "partition", "one way", "cut", "stall", "slow disk", "disk error")


@dataclass
class Topic:
    name: str
    partitions: int
    replicas: int
    settings: dict[str, str]


@dataclass
class Options:
    """What a seed means."""

    seed: int
    brokers: int
    liveness: bool
    seconds: int
    shuffle: bool
    weather: Weather
    settings: dict[str, str]
    topics: list[Topic]
    idempotent: list[bool]
    """one per producer"""
    pace_seconds: float
    faults: list[str]
    fault_seconds: float
    """mean time between faults"""
    burst_chance: float
    """of a fault to be followed by another one at once"""
    change_settings: bool
    unclean: bool = field(default=False)

    def __str__(self) -> str:
        return "\n".join(f"  {each.name} = {getattr(self, each.name)}" for each in fields(self))


def options_of(seed: int, brokers: int = 3) -> Options:
    random = Random(f"options {seed} {brokers}")
    liveness = brokers > 2 and seed % 4 == 3
    unclean = not liveness and random.random() < 0.15
    replicas = brokers
    topics = []
    for number in range(random.randint(1, 2)):
        settings = {"min.insync.replicas": str(min(replicas, 2) if liveness else random.randint(1, min(replicas, 2)))}
        if unclean and number == 0:
            settings["unclean.leader.election.enable"] = "true"
        if random.random() < 0.3:
            settings["segment.bytes"] = "1048576"
        if random.random() < 0.2:
            settings["flush.messages"] = "1"
        topics.append(Topic(f"t{number}", random.randint(1, 3), replicas, settings))
    lag_ms, session_ms = random.choice((3000, 6000)), random.choice((3000, 6000, 9000))
    settings = {
        "replica.lag.time.max.ms": str(lag_ms),
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(random.choice((500, 1000))),
        "replica.fetch.wait.max.ms": "500",
        "min.insync.replicas": str(min(brokers, 2)),
    }
    weather = Weather(delay_max=random.choice((0.001, 0.005, 0.02, 0.1)))
    if random.random() < 0.5:
        weather.slow_chance, weather.slow_delay_max = random.choice((0.05, 0.2, 0.5)), random.choice((0.3, 1.0, 3.0))
    faults = [fault for fault in _ALL_FAULTS if random.random() < 0.6] or ["kill"]
    if brokers > 2:
        faults = _profile(seed, weather, topics, settings, faults)
    return Options(
        seed, brokers, liveness, random.randint(40, 90), random.random() < 0.7, weather, settings, topics,
        [random.random() < 0.7 for _ in range(random.randint(1, 3))], random.choice((0.1, 0.3, 0.6)), faults,
        random.choice((1.5, 3.0, 6.0)), random.choice((0.0, 0.3, 0.6)), not liveness and random.random() < 0.3, unclean,
    )  # fmt: skip


def _profile(seed: int, weather: Weather, topics: list[Topic], settings: dict[str, str], faults: list[str]) -> list[str]:
    """Some seeds look where uniform faults seldom come: machines that come back before what they sent arrives; leaders that die just after a
    follower left."""
    if seed % 8 == 5:
        weather.delay_max, weather.slow_chance, weather.slow_delay_max = 0.005, 0.5, 4.0
        weather.slow_callers, weather.slow_ports = "n", (CLIENT_PORT,)
        settings |= {"broker.session.timeout.ms": "800", "broker.heartbeat.interval.ms": "200"}  # a session outlives its process
        return ["flap", "flap", "pause"]
    if seed % 8 == 2:
        weather.delay_max, weather.slow_chance = 0.005, 0.0
        settings |= {"replica.lag.time.max.ms": "2000", "broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "500"}
        return ["relapse", "relapse", "relapse", "cut"]
    if seed % 8 == 1:
        for topic in topics:
            topic.settings["min.insync.replicas"] = "2"
        weather.delay_max, weather.slow_chance, weather.slow_delay_max = 0.005, 0.5, 0.3
        weather.slow_callers, weather.slow_ports = "n", (CLIENT_PORT,)
        return ["handover"]
    return faults


class Faults:
    """Draws what goes wrong next, and puts right what it did. Its own clock never stops."""

    def __init__(self, cluster: SimCluster, options: Options) -> None:
        self.cluster, self.options = cluster, options
        self.random = Random(f"faults {options.seed}")
        self.clock = cluster.client_runtime("faults").clock
        self.over = False
        names = list(cluster.nodes)
        self._victims = names[2:] if options.liveness else names
        self.clock.callLater(3 + self.random.random() * 3, self._next)

    def _next(self) -> None:
        if self.over:
            return
        kind, node = self.random.choice(self.options.faults), self.cluster.nodes[self.random.choice(self._victims)]
        getattr(self, "_" + kind.replace(" ", "_"))(node)
        if self.random.random() < self.options.burst_chance:
            self.clock.callLater(self.random.random() ** 2, self._next)
        else:
            self.clock.callLater(self.random.expovariate(1 / self.options.fault_seconds), self._next)

    def _soon(self, call: Callable[[], None], seconds: float = 8.0) -> None:
        self.clock.callLater(self.random.random() ** 2 * seconds, call)

    def _again(self, node: SimNode) -> None:
        if not node.is_up and not self.over:
            node.start()

    def _kill(self, node: SimNode) -> None:
        if node.is_up:
            node.kill()
        self._soon(lambda: self._again(node))

    def _power(self, node: SimNode) -> None:
        if node.is_up:
            node.lose_power()
        self._soon(lambda: self._again(node))

    def _flap(self, node: SimNode) -> None:
        """Power comes and goes: what the machine sent before may arrive after it is back."""
        if node.is_up:
            node.lose_power()
        self.clock.callLater(self.random.random() * 0.1, self._again, node)
        self.clock.callLater(0.5 + self.random.random() * 1.5, self._power_again, node)

    def _handover(self, node: SimNode) -> None:
        """A machine leaves in order; as soon as something is committed without it that its other follower has not heard of, a leader dies."""
        if node.name == "n1" or not all(other.healthy for other in self.cluster.nodes.values()):
            return
        node.stop()
        self.clock.callLater(0.001, self._handover_when_unheard, node, {}, _HANDOVER_LOOKS)
        self.clock.callLater(4 + self.random.random() * 3, self._again, node)
        self.clock.callLater(11 + self.random.random() * 3, self._again, node)

    def _handover_when_unheard(self, node: SimNode, ends: dict[TopicPartition, int], looks: int) -> None:
        """`ends`: where the logs of the machine that left ended."""
        if node.is_up:
            ends |= {name: partition.log.log_end_offset for name, partition in _partitions(node).items() if partition.log is not None}
        leader = next((other for other in self.cluster.nodes.values() if other is not node and self._unheard(other, node, ends)), None)
        if leader is not None and leader.name in self._victims:
            leader.kill()
            self.clock.callLater(9 + self.random.random() * 6, self._again, leader)
        elif looks:
            self.clock.callLater(0.001, self._handover_when_unheard, node, ends, looks - 1)

    def _unheard(self, leader: SimNode, gone: SimNode, ends: dict[TopicPartition, int]) -> bool:
        """Whether it committed more than the one that left holds, while nobody else knows of more than that."""
        others = [_partitions(other) for other in self.cluster.nodes.values() if other not in (leader, gone)]
        for name, partition in _partitions(leader).items():
            log, end = partition.leader_log, ends.get(name)
            if log is None or end is None or gone.node_id in partition.isr_state.isr or log.high_watermark <= end:
                continue
            marks = [held[name].log.high_watermark for held in others if name in held and held[name].log is not None]
            if marks and max(marks) <= end:
                return True
        return False

    def _relapse(self, node: SimNode) -> None:
        """A machine falls out of its ISRs and comes back; when its leaders tell the controller so, their connections die, and it stops again."""
        if node.name == "n1" or any(other.clock.paused for other in self.cluster.nodes.values()):
            return  # with two of three away nothing is committed that the one could lack
        back = 3.5 + self.random.random()
        self._pause_for(node, back)
        self.clock.callLater(back, self._relapse_when_joining, node, _RELAPSE_LOOKS)

    def _relapse_when_joining(self, node: SimNode, looks: int) -> None:
        if self._is_joining(node):
            self._give_up_on_the_controller()
            self.clock.callLater(0.1 + self.random.random() * 0.5, self._pause_for, node, 5.0 + self.random.random() * 2)
        elif looks:
            self.clock.callLater(_RELAPSE_LOOK_SECONDS, self._relapse_when_joining, node, looks - 1)

    def _is_joining(self, node: SimNode) -> bool:
        """Whether a leader proposes it to the controller."""
        states = [partition.isr_state for other in self.cluster.nodes.values() for partition in _partitions(other).values()]
        return any(isinstance(state, PendingExpand) and state.joining == node.node_id for state in states)

    def _pause_for(self, node: SimNode, seconds: float) -> None:
        if node.is_up and not node.clock.paused and not self.over:
            clock = node.clock
            node.pause()
            self.clock.callLater(seconds, lambda: self._go_on(node, clock))

    def _give_up_on_the_controller(self) -> None:
        self.cluster.note("faults", "brokers find their connections to the controller dead")
        for near in list(self.cluster.network.connections):
            if near.peer.getHost().port == CONTROLLER_PORT and near.connected and not near.clock.dead:
                self.cluster.network.give_up(near, 3.0 + self.random.random() * 3)

    def _power_again(self, node: SimNode) -> None:
        if node.is_up and not self.over:
            node.lose_power()
        self.clock.callLater(self.random.random() * 0.1, self._again, node)

    def _crash(self, node: SimNode) -> None:
        """Power is lost in one of the next operations on the disk."""
        if node.is_up:
            node.disk.crash_at = node.disk.operations + self.random.randrange(60)
        self.clock.callLater(4 + self.random.random() * 6, self._again, node)

    def _stop(self, node: SimNode) -> None:
        if node.is_up and not node.clock.paused:
            node.stop()
        self.clock.callLater(11 + self.random.random() * 5, self._again, node)

    def _pause(self, node: SimNode) -> None:
        if node.is_up and not node.clock.paused:
            clock = node.clock
            node.pause()
            self._soon(lambda: self._go_on(node, clock), 15.0)

    @staticmethod
    def _go_on(node: SimNode, clock: Any) -> None:
        if node.clock is clock and clock.paused:
            node.go_on()

    def _partition(self, node: SimNode) -> None:
        others = [name for name in (*self.cluster.nodes, *self._clients()) if name != node.name and self.random.random() < 0.7]
        self.cluster.note("faults", f"{node.name} is cut off from {others}")
        for other in others:
            self.cluster.network.block(node.name, other)
            self.cluster.network.block(other, node.name)
        self._soon(self._heal, 15.0)

    def _one_way(self, node: SimNode) -> None:
        other = self.random.choice([name for name in self.cluster.nodes if name != node.name] or ["p0"])
        way = (node.name, other) if self.random.random() < 0.5 else (other, node.name)
        self.cluster.note("faults", f"nothing gets from {way[0]} to {way[1]}")
        self.cluster.network.block(*way)
        self._soon(self._heal, 15.0)

    def _clients(self) -> list[str]:
        return [f"p{number}" for number in range(len(self.options.idempotent))]

    def _heal(self) -> None:
        self.cluster.note("faults", "the network heals")
        self.cluster.network.heal()

    def _cut(self, node: SimNode) -> None:
        self.cluster.note("faults", f"connections of {node.name} die")
        for near in list(self.cluster.network.connections):
            if node.name in (near.clock.name, near.peer.clock.name) and self.random.random() < 0.4:
                self.cluster.network.cut(near)

    def _stall(self, node: SimNode) -> None:
        if node.is_up and not node.stalled:
            clock = node.clock
            node.stall_disk()
            self._soon(lambda: node.resume_disk() if node.clock is clock and node.stalled else None, 12.0)

    def _slow_disk(self, node: SimNode) -> None:
        node.disk_delay_ms = self.random.choice(((0, 2), (5, 50), (50, 400)))
        self.cluster.note("faults", f"disk of {node.name} takes {node.disk_delay_ms} ms")

    def _disk_error(self, node: SimNode) -> None:
        """The only log directory fails: the broker ends itself."""
        from errno import EIO, ENOSPC

        from twisted_broker.testing.sim_disk import Fault

        if node.is_up:
            fault = Fault(self.random.choice((EIO, ENOSPC)), self.random.choice(("write", "sync", "rename")), times=1)
            self.cluster.note("faults", f"disk of {node.name}: error {fault.error} in the next {fault.operation}")
            node.disk.faults.append(fault)
        self.clock.callLater(5 + self.random.random() * 5, self._after_disk_error, node)

    def _after_disk_error(self, node: SimNode) -> None:
        """A process that goes on without its disk is replaced, as an operator would."""
        if node.is_up and not node.clock.paused and not node.stopping and node.broker is not None and not node.broker.log_manager.online():
            node.kill()
        self._again(node)

    def heal(self) -> None:
        """Everything works from now on; what is down starts."""
        self.over = True
        self.cluster.note("faults", "all faults end")
        self.cluster.network.heal()
        self.cluster.network.hurry()
        for node in self.cluster.nodes.values():
            node.disk.faults.clear()
            node.disk.crash_at = None
            node.disk_delay_ms = (0, 2)
            if node.clock.paused:
                node.go_on()
            if node.stalled:
                node.resume_disk()
        self._start_all()

    def _start_all(self) -> None:
        """Again and again: a broker may end itself over an old fault, or be on its way out."""
        for node in self.cluster.nodes.values():
            offline = node.broker is not None and node.is_up and node.broker.log_manager.offline()
            if offline:
                node.kill()
            if not node.is_up:
                node.start()
        self.clock.callLater(2.0, self._start_all)


def _partitions(node: SimNode) -> dict[TopicPartition, Any]:
    """What a machine's broker holds; nothing while it does not run."""
    manager = None if node.broker is None else node.broker.parts.replica_manager
    return {} if manager is None else manager.partitions


class Run:
    """One seed, from empty disks to the verdict."""

    def __init__(self, options: Options, trace: bool = False) -> None:
        self.options = options
        self.cluster = SimCluster(
            options.seed, options.brokers, options.settings, options.weather, shuffle=options.shuffle, trace=trace
        )
        self.checker = ClusterChecker(self.cluster)
        self.history = History()
        self.clients = ClientChecker(self.checker, self.history)
        self.faults: Faults | None = None
        self._running: list[Any] = []
        self._operated = 0.0

    def run(self) -> None:
        """Raises `Violation`."""
        with self.cluster as cluster:
            cluster.start()
            self._start_clients()
            self.faults = Faults(cluster, self.options)
            self._go_until(float(self.options.seconds), self.options.liveness)
            self.faults.heal()
            self._converge()

    def _go_until(self, when: float, must_progress: bool) -> None:
        while self.cluster.sim.now < when:
            self.cluster.run_until(min(when, self.cluster.sim.now + 1.0))
            if must_progress and self.cluster.sim.now - self.clients.last_ack_seconds > _STALLED_FOR:
                raise Violation(f"no producer got on since {self.clients.last_ack_seconds:.1f}, though a core is healthy")

    def _start_clients(self) -> None:
        options, cluster = self.options, self.cluster
        brokers = [(name, CLIENT_PORT) for name in cluster.nodes]
        self.admin = Admin(cluster.client_runtime("admin"), "admin", brokers, self.history)
        partitions = [TopicPartition(topic.name, number) for topic in options.topics for number in range(topic.partitions)]
        self.producers = [
            Producer(cluster.client_runtime(f"p{number}"), f"p{number}", brokers, self.history, partitions, idempotent)
            for number, idempotent in enumerate(options.idempotent)
        ]
        self.consumers = [
            Consumer(cluster.client_runtime(f"c{number}"), f"c{number}", brokers, self.history, partition)
            for number, partition in enumerate(partitions)
        ]
        self._go(self._administer())
        for producer in self.producers:
            producer.pace_seconds = options.pace_seconds
            self._go(producer.main())
        for consumer in self.consumers:
            self._go(consumer.main())

    def _go(self, work: Any) -> None:
        self._running.append(ensureDeferred(work).addErrback(lambda failure: self.cluster.bug(f"a client failed: {failure.getTraceback()}")))

    async def _administer(self) -> None:
        for topic in self.options.topics:
            await self.admin.create(topic.name, topic.partitions, topic.replicas, topic.settings)
        while self.options.change_settings and not self.admin.stopped:
            await self.admin.pause(self.admin.random.expovariate(1 / 8.0))
            topic = self.admin.random.choice(self.options.topics)
            await self.admin.change(topic.name, "min.insync.replicas", str(self.admin.random.randint(1, min(topic.replicas, 2))))

    def _converge(self) -> None:
        """Producers go on for a moment, then stop; then the cluster must come to rest with all replicas equal."""
        sim = self.cluster.sim
        self._go_until(sim.now + 10, False)
        self._operated = sim.now
        while not self.history.acked_records and sim.now < self.options.seconds + _HEAL_SECONDS:
            self.cluster.run_until(sim.now + 1.0)
            self._accept_loss()
        for producer in self.producers:
            producer.stopped = True
        self.admin.stopped = True
        deadline = sim.now + _HEAL_SECONDS
        missing = "nothing was looked at"
        while missing and sim.now < deadline:
            self.cluster.run_until(sim.now + 2.0)
            missing = self.checker.converged() or self._consumers_behind()
            self._accept_loss()
        if missing:
            raise Violation(f"not healed {_HEAL_SECONDS} s after the last fault: {missing}")
        self.clients.at_the_end()
        if self.checker.broken:
            raise Violation(self.checker.broken)
        if not self.history.acked_records or not self.history.consumed_records:
            raise Violation("nothing was acknowledged or nothing was read: this run proves nothing")

    def _accept_loss(self) -> None:
        """What an operator does, now and then, with partitions of which nobody knows who had all."""
        now = self.cluster.sim.now
        lost = self.checker.without_candidates()
        if lost and now - self._operated > _PATIENCE_SECONDS:
            self._operated = now
            self._go(self._elect_uncleanly(lost))

    async def _elect_uncleanly(self, topics: list[str]) -> None:
        """Allows it, and lets it happen: when a broker comes back."""
        for topic in topics:
            await self.admin.change(topic, "unclean.leader.election.enable", "true")
        for node in list(self.cluster.nodes.values())[1:]:
            if node.is_up:
                node.kill()

    def _consumers_behind(self) -> str:
        for consumer in self.consumers:
            end = self.checker.line_of(consumer.partition).end
            if consumer.position < end:
                return f"{consumer.name} is at {consumer.position} of {end} in {consumer.partition}"
        return ""


class Verdict:
    """What became of a seed."""

    def __init__(self, options: Options, run: Run, violation: Violation | None, wall_seconds: float) -> None:
        self.options, self.run, self.violation, self.wall_seconds = options, run, violation, wall_seconds

    def __str__(self) -> str:
        sim, history = self.run.cluster.sim, self.run.history
        kind = "liveness" if self.options.liveness else "safety"
        return (
            f"seed {self.options.seed} {kind}: {sim.now:.0f} s, {sim.steps} steps, {history.acked_records} acknowledged,"
            f" {history.consumed_records} read, {self.run.checker.unclean_elections} unclean elections, {self.wall_seconds:.1f} s"
        )


def run_seed(seed: int, brokers: int = 3, trace: bool = False, options: Options | None = None) -> Verdict:
    options = options if options is not None else options_of(seed, brokers)
    run = Run(options, trace)
    began = time.perf_counter()
    violation = None
    gc.disable()  # what a dead process left must not run when the collector happens to come by
    try:
        run.run()
    except Violation as found:
        violation = found
        run.cluster.note("checker", f"VIOLATION: {found}")
    finally:
        gc.enable()
    return Verdict(options, run, violation, time.perf_counter() - began)


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Runs a cluster in memory under seeds, with faults, checking every step.")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--timeless", action="store_true", help="leave out how long it took")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    chosen = parser.parse_args(arguments)
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    failed = []
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        verdict = run_seed(seed, chosen.brokers, chosen.trace)
        if chosen.timeless:
            verdict.wall_seconds = 0.0
        if chosen.trace:
            out.write("\n".join(verdict.run.cluster.trace.lines) + "\n")
        if verdict.violation is not None:
            failed.append(seed)
            replay = f"make simulate SEEDS=1 FROM={seed} NODES={chosen.brokers} TRACE=1"
            out.write(f"{verdict}\n  FAILED at {verdict.run.cluster.sim.now:.3f}: {verdict.violation}\n{verdict.options}\n  replay: {replay}\n")
        elif not chosen.quiet:
            out.write(f"{verdict}\n")
        out.flush()
    out.write(f"{chosen.seeds - len(failed)} passed, {len(failed)} failed{': ' + ' '.join(map(str, failed)) if failed else ''}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
