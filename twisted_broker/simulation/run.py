"""One simulated run, from empty disks to its result.

Owns `Run`: its clients, the time with faults, the repair, and what an operator does meanwhile.

1. While faults hit, a liveness run must make progress as soon as the core serves its topics. A
   topic can be created only when as many brokers are registered as it has replicas, also outside
   the core; if it was created before a member of the core was unfenced, its leader may be outside.
   The core's own connections may be too slow for what its producers wait; that time does not count.
2. Then all faults end. Within a bounded time all replicas are back in their ISRs, the logs are
   equal, and consumers have read to the end.
3. A run in which nothing was acknowledged or read proves nothing, and fails.

Source: RELIABILITY 4; the simulations of FoundationDB and TigerBeetle. Not here: what must hold
(`simulation/checks`), what fails (`simulation/faults`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import ensureDeferred

from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    TransactionMarkerSender,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetcher import FENCED
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.admin import Admin
from twisted_broker.simulation.checks.clients import ClientChecker
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.committed_state import Violation
from twisted_broker.simulation.checks.consumer_groups import ConsumerGroupChecker
from twisted_broker.simulation.checks.end_state import is_there, what_is_missing
from twisted_broker.simulation.checks.groups import GroupChecker
from twisted_broker.simulation.checks.share_groups import ShareGroupChecker
from twisted_broker.simulation.checks.transactions import TransactionChecker
from twisted_broker.simulation.classic_consumer import ClassicConsumer, MixedMember
from twisted_broker.simulation.client_notes import Attempt, Notes
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.committed_consumer import (
    CommittedConsumer,
    KeyedReader,
    OffsetsReader,
)
from twisted_broker.simulation.consumer import Consumer
from twisted_broker.simulation.consumer_member import ConsumerMember
from twisted_broker.simulation.fault_schedule import Faults
from twisted_broker.simulation.faults.base import partitions
from twisted_broker.simulation.image_counts import ImageCounts
from twisted_broker.simulation.keyed_producer import KeyedProducer
from twisted_broker.simulation.knobs import turned
from twisted_broker.simulation.member import SESSION_MS, Member
from twisted_broker.simulation.node import CLIENT_PORT, SimNode
from twisted_broker.simulation.options import Options
from twisted_broker.simulation.probes import Probes
from twisted_broker.simulation.producer import TIMEOUT_MS, Producer
from twisted_broker.simulation.reach import Reach
from twisted_broker.simulation.replica_acts import THROTTLE, ease_throttles
from twisted_broker.simulation.schedule import Action, Schedule
from twisted_broker.simulation.share_member import ShareMember
from twisted_broker.simulation.streams_member import StreamsMember
from twisted_broker.simulation.transaction_notes import TransactionNotes
from twisted_broker.simulation.transactional_producer import TransactionalProducer

_HEAL_SECONDS = 120
_PATIENCE_SECONDS = 10
_STALLED_FOR = 45.0
_SLOW_SECONDS = TIMEOUT_MS / 2 / 1000
"""A round trip that a batch is not surely replicated with in the time that its producer gives it:
it waits for the fetch that is under way, and for the one that takes it.
"""
_IN_FLIGHT_SECONDS = 8
"""What was sent when the clients stopped is answered by then."""


_STUCK = "the last stable offset does not reach the end of"


class Run:
    """`trace`: keep every call that ran. `kept`: the actions that alone are done."""

    def __init__(
        self, options: Options, trace: bool = False, kept: Sequence[Action] | None = None
    ) -> None:
        self.options = options
        self.schedule = Schedule(options.seed, kept)
        self.reach = self.make_reach()
        self.cluster = self.make_cluster(trace)
        self.checker = self.make_checker()
        if options.liveness:
            self.checker.truth.core = frozenset(options.broker_ids[:2])
        self._core = frozenset(f"n{each}" for each in self.checker.truth.core)
        self.checker.truth.committed = ImageCounts(self.reach).committed
        self.notes = Notes()
        self.notes.refused, self.notes.reached = self.reach.answer, self.reach.count
        self.clients = ClientChecker(self.checker, self.notes)
        self.groups = GroupChecker(self.checker, self.notes, self.reach.count)
        self.consumer_group = ConsumerGroupChecker(self.checker, self.reach.count)
        self.mixed_group = ConsumerGroupChecker(self.checker, self.reach.count, SESSION_MS / 1000)
        self.streams_group = ConsumerGroupChecker(self.checker, self.reach.count)
        self.share_group = ShareGroupChecker(
            self.checker, self.reach.count, options.share_lock_ms, options.share_deliveries
        )
        self.known = TransactionNotes()
        self.known.counted = self.reach.count
        compacted = self.checker.compacted
        self.transactions = TransactionChecker(self.checker, self.known, compacted.is_visible)
        self.known.keyed_acked, self.known.pass_ended = self._keyed_acked, self._pass_ended
        self.known.keyed_delivered = compacted.delivered
        self.faults: Faults | None = None
        self._running: list[Any] = []
        self._operated = self._stopped_at = self._hindered_at = 0.0

    # what it is made of

    def make_reach(self) -> Reach:
        """Counts what happens."""
        return Reach()

    def make_cluster(self, trace: bool) -> SimCluster:
        """The machines."""
        options = self.options
        return SimCluster(
            options.seed,
            options.brokers,
            options.settings,
            options.conditions,
            shuffle=options.shuffle,
            trace=trace,
            controller_only=options.controller_only,
            directories=options.directories,
            controllers=options.controllers,
        )

    def make_checker(self) -> ClusterChecker:
        """What must hold of them."""
        return ClusterChecker(self.cluster)

    def make_probes(self) -> Probes:
        """Where the production code is watched."""
        return Probes(self.reach, self.checker.replacing, self.checker.taking, self._markers_sent)

    def make_faults(self) -> Faults:
        """What goes wrong from now on."""
        return Faults(self.cluster, self.options, self.reach, self.schedule.actor, self.members)

    def what_is_missing(self) -> str:
        """Of the cluster's steady state; "" when nothing is."""
        return what_is_missing(self.checker)

    def make_admin(self) -> Admin:
        """Who makes topics, and changes them."""
        return Admin(*self._client_machine("admin"), self.notes)

    def heal(self, faults: Faults) -> None:
        """Nothing goes wrong any more."""
        faults.heal()

    # the run

    def run(self) -> None:
        """Raises `Violation`."""
        probes = self.make_probes()
        with self.cluster as cluster, probes, turned(self.options.knobs):
            cluster.start(self.options.join_seconds)
            self.reach.count("controller apart", int(self.options.controller_only))
            self._start_clients()
            self.faults = faults = self.make_faults()
            self._go_until(float(self.options.seconds), self.options.liveness)
            self.heal(faults)
            self._converge()

    def _go_until(self, when: float, must_progress: bool) -> None:
        sim = self.cluster.sim
        while sim.now < when:
            sim.run_until(min(when, sim.now + 1.0))
            if (
                self.cluster.network.round_trip(self._core) > _SLOW_SECONDS
                or not self._is_in_core()
            ):
                self._hindered_at = sim.now
            since = max(self.clients.last_ack_seconds, self._hindered_at)
            if must_progress and sim.now - since > _STALLED_FOR:
                raise Violation(f"no producer got on since {since:.1f}, though a core is healthy")

    def _is_in_core(self) -> bool:
        """Whether all partitions that producers write to had a member of the core in their ISR."""
        truth, topics = self.checker.truth, {topic.name for topic in self.options.topics}
        keys = [key for key, name in truth.names.items() if name.topic in topics]
        return bool(keys) and all(truth.line(key).was_in_core for key in keys)

    # clients

    def _start_clients(self) -> None:
        places = [
            TopicPartition(topic.name, number)
            for topic in (*self.options.topics, *self.options.churn)
            for number in range(topic.partitions)
        ]
        by_id = {topic.name for topic in self.options.churn}
        self.admin = self.make_admin()
        self.producers = [
            Producer(
                *self._client_machine(f"p{number}"),
                self.notes,
                places,
                idempotent,
                self.options,
            )
            for number, idempotent in enumerate(self.options.idempotent)
        ]
        self.consumers = [
            Consumer(
                *self._client_machine(f"c{number}"),
                self.notes,
                partition,
                partition.topic in by_id,
            )
            for number, partition in enumerate(places)
        ]
        lasting = [place for place in places if place.topic not in by_id]
        self.members: list[Member] = [
            Member(*self._client_machine(f"m{number}"), self.notes, lasting)
            for number in range(self.options.members)
        ]
        self.members += [
            ConsumerMember(
                *self._client_machine(f"u{number}"), self.notes, lasting, self.consumer_group
            )
            for number in range(self.options.consumer_members)
        ]
        self._mixed: list[Member] = [
            kind(*self._client_machine(f"{letter}{number}"), self.notes, lasting, self.mixed_group)
            for letter, kind in (("y", ClassicConsumer), ("z", MixedMember))
            for number in range(self.options.mixed_members)
        ]
        self._streams: list[Member] = [
            StreamsMember(
                *self._client_machine(f"w{number}"),
                self.notes,
                lasting,
                self.streams_group,
                min(3, self.options.brokers) if self.options.has_state else 0,
            )
            for number in range(self.options.streams_members)
        ]
        self.members += [*self._mixed, *self._streams]
        self.members += [
            ShareMember(
                *self._client_machine(f"s{number}"),
                self.notes,
                lasting,
                self.share_group,
                self.options.share_lock_ms,
            )
            for number in range(self.options.share_members)
        ]
        self._lasting = lasting
        self._shared = lasting if self.options.share_members else []
        for client in (self.admin, *self.producers, *self.consumers, *self.members):
            client.actor = self.schedule.actor(client.name)
        for member in self.members:
            member.late_commit_refused = lambda: self.reach.count("late commit refused")
            self._go(member.main())
        self._go(self.admin.work(self.options))
        self._start_transactional(places)
        for producer in self.producers:
            self._go(producer.main())
        for consumer in self.consumers:
            self._go(consumer.main())

    def _start_transactional(self, places: list[TopicPartition]) -> None:
        """Nothing in a run without transactions."""
        options = self.options
        compacted = [
            TopicPartition(topic.name, number)
            for topic in options.compacted
            for number in range(topic.partitions)
        ]
        self.transactional = [
            TransactionalProducer(
                *self._client_machine(f"x{number}{instance}"),
                self.notes,
                self.known,
                f"x{number}",
                version,
                places + compacted,
                options,
            )
            for number, version in enumerate(options.transactional)
            for instance in "ab"
        ]
        self.keyed = [
            KeyedProducer(*self._client_machine("k"), self.known, compacted, options)
            for _ in options.compacted[:1]
        ]
        self.committed = [
            CommittedConsumer(
                *self._client_machine(f"r{number}"), self.notes, self.known, partition
            )
            for number, partition in enumerate(places if options.transactional else ())
        ]
        self.readers = [
            KeyedReader(*self._client_machine(f"v{number}"), self.notes, self.known, partition)
            for number, partition in enumerate(compacted)
        ]
        self.offsets = [
            OffsetsReader(
                *self._client_machine(f"o{number}"), self.notes, self.known, f"x{number}", places[0]
            )
            for number in range(len(options.transactional))
        ]
        readers = {each.transactional_id: each for each in self.offsets}
        self.known.offset_acked = lambda name: self._go(readers[name].fetch())
        clients: list[TransactionalProducer | KeyedProducer | CommittedConsumer | OffsetsReader] = [
            *self.transactional,
            *self.keyed,
            *self.committed,
            *self.readers,
            *self.offsets,
        ]
        for client in clients:
            client.actor = self.schedule.actor(client.name)
            self._go(client.main())

    def _markers_sent(self, sender: TransactionMarkerSender) -> None:
        if self.faults is not None:
            self.faults.injector.markers_sent(sender)

    def _keyed_acked(self, attempt: Attempt) -> None:
        if self.clients.is_owed(attempt):
            self.checker.compacted.acked(attempt.partition, attempt.base_offset, attempt.values)

    def _pass_ended(
        self, who: str, name: TopicPartition, end: int, seconds: float, seen: dict[bytes, int]
    ) -> None:
        self.reach.count("compacted log read")
        self.checker.compacted.pass_ended(who, name, end, seconds, seen, self.cluster.sim.now)

    def _client_machine(self, name: str) -> tuple[Any, str, list[tuple[str, int]]]:
        """A client's runtime, its name, and the brokers it knows."""
        return (
            self.cluster.client_runtime(name),
            name,
            [(broker, CLIENT_PORT) for broker in self.cluster.brokers],
        )

    def _go(self, work: Any) -> None:
        self._running.append(
            ensureDeferred(work).addErrback(
                lambda failure: self.cluster.bug(f"a client failed: {failure.getTraceback()}")
            )
        )

    # healing

    def _converge(self) -> None:
        """Producers go on for a moment, then stop; then the cluster must come to rest with all
        replicas equal.
        """
        self._await_progress_of_producers()
        for producer in (*self.producers, *self.transactional, *self.keyed):
            producer.stopped = True
        self._stopped_at = self.cluster.sim.now
        for member in self.members:
            member.commits = False
        self.admin.stopped = True
        if THROTTLE in self.options.acts:
            self._go(ease_throttles(self.admin))
        missing = self._await_steady_state()
        if missing.startswith(_STUCK):
            raise Violation(missing)
        if missing:
            raise Violation(f"not healed {_HEAL_SECONDS} s after the last fault: {missing}")
        if self.checker.truth.unclean_in_core:
            raise Violation("an unclean election, though a core was healthy")
        self.clients.at_the_end()
        self.transactions.at_the_end({each.transactional_id: each.last for each in self.offsets})
        self.share_group.at_the_end(self._shared)
        self._check_compacted()
        if self.checker.broken:
            raise Violation(self.checker.broken)
        if not self.notes.acked_records or not self.notes.consumed_records:
            raise Violation("nothing was acknowledged or nothing was read: this run proves nothing")

    def _await_progress_of_producers(self) -> None:
        sim = self.cluster.sim
        self._go_until(sim.now + 10, False)
        self._operated = sim.now
        notes, ends = self.notes, self.options.seconds + _HEAL_SECONDS
        # What was acknowledged before may be lost to the last replica of all, before it was read.
        while not (notes.acked_records and notes.consumed_records) and sim.now < ends:
            sim.run_until(sim.now + 1.0)
            self._accept_loss()

    def _await_steady_state(self) -> str:
        """What is missing when the time for it is over."""
        sim = self.cluster.sim
        deadline = sim.now + _HEAL_SECONDS
        missing = "nothing was looked at"
        while missing and sim.now < deadline:
            sim.run_until(sim.now + 2.0)
            missing = (
                self.what_is_missing()
                or self._consumers_behind()
                or self._committed_behind()
                or self._unowned()
                or self.share_group.behind(self._shared)
            )
            self._accept_loss()
            self._remake_replicas()
        return missing

    def _consumers_behind(self) -> str:
        for consumer in self.consumers:
            if not is_there(self.checker, consumer.partition):
                continue  # its topic was deleted, and not made again
            end = self.checker.truth.line_of(consumer.partition).end
            keys = self.checker.truth.keys
            if keys.get(consumer.fact) != keys.get(consumer.partition):
                return f"{consumer.name} reads {consumer.fact}, another topic of this name is there"
            if consumer.position < end:
                return f"{consumer.name} is at {consumer.position} of {end} in {consumer.partition}"
        return ""

    def _unowned(self) -> str:
        """Of the groups whose members stay now: they have everything."""
        for kind, members in (("mixed", self._mixed), ("streams", self._streams)):
            owned = {place for member in members for place in member.owned}
            left = sorted({*self._lasting} - owned)
            if members and left:
                return f"nobody in the {kind} group has {left[0]}"
        return ""

    def _committed_behind(self) -> str:
        """Open transactions time out; then everything is stable, and read."""
        if not self.options.transactional:
            return ""
        lines = self.checker.truth.line_of
        for consumer in self.committed:
            end = lines(consumer.partition).end
            if consumer.position < end and self.transactions.is_owed(consumer.partition):
                return f"{_STUCK} {consumer.partition}: {consumer.position} of {end}"
        if self.cluster.sim.now < self._stopped_at + _IN_FLIGHT_SECONDS:
            return "answers are under way"
        settled = self._stopped_at + _IN_FLIGHT_SECONDS
        for reader in self.readers:
            if not self.transactions.is_owed(reader.partition):
                continue
            if reader.end < lines(reader.partition).end:
                return f"{_STUCK} {reader.partition}: {reader.end}"
            if reader.began < settled:
                return f"{reader.name} has not read {reader.partition} again"
        for each in self.offsets:
            if each.began < settled and self.transactions.is_owed(None):
                return f"{_STUCK} the offsets of {each.transactional_id}"
        return ""

    def _check_compacted(self) -> None:
        """Every replica, once more."""
        for name, known in self.checker.members.seen.items():
            for seen in known.values():
                node = self.cluster.nodes[name]
                self.checker.compacted.check(
                    seen.key,
                    seen.log,
                    node.disk,
                    self.cluster.sim.now,
                    f"{name} {seen.partition!r}",
                )

    # the operator

    def _accept_loss(self) -> None:
        """What an operator does, now and then, with partitions of which nobody knows who had
        all.
        """
        lost = self.checker.truth.without_candidates()
        if lost and self.cluster.sim.now - self._operated > _PATIENCE_SECONDS:
            self._operated = self.cluster.sim.now
            self._go(self._elect_uncleanly(lost))

    def _remake_replicas(self) -> None:
        """A replica whose log is refused (offsets missing) is made anew from its leader, as the
        line that refuses it says; now and then, one machine at a time.
        """
        if self.cluster.sim.now - self._operated <= _PATIENCE_SECONDS:
            return
        for node in self.cluster.nodes.values():
            refused = [
                name
                for name, partition in partitions(node).items()
                if _is_refused(partition) and self._is_held_elsewhere(node, partition)
            ]
            if refused and node.broker is not None:
                self._operated = self.cluster.sim.now
                paths = node.settings["log.dirs"].split(",")
                node.kill()
                for path in [f"{path}/{name}" for path in paths for name in refused]:
                    if node.disk.is_directory(path):
                        self.reach.by_hand("replica made anew")
                        node.disk.lose(path)
                return  # the schedule starts it again

    def _is_held_elsewhere(self, node: SimNode, partition: Partition) -> bool:
        """Whether another machine has a log of it that is not refused: of a leader that is, the
        operator gives up what only it had.
        """
        held = [
            partitions(other).get(partition.topic_partition)
            for other in self.cluster.nodes.values()
            if other is not node
        ]
        return any(each is not None and not each.offline for each in held)

    async def _elect_uncleanly(self, topics: list[str]) -> None:
        """Allows it, and lets it happen: when a broker comes back."""
        for topic in topics:
            await self.admin.change(topic, "unclean.leader.election.enable", "true")
        for node in list(self.cluster.nodes.values())[1:]:
            if node.is_up:
                node.kill()


def _is_refused(partition: Partition) -> bool:
    """Whether its log is; who only waits for newer metadata hears of it (a ZooKeeper controller
    gives up a connection that is half open after 30 s).
    """
    failure = partition.history.failure
    return partition.offline or (failure is not None and failure.reason != FENCED)
