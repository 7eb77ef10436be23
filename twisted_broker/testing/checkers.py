"""What must always hold, checked after every step of a simulated run.

Owns `ClusterChecker` (brokers and controller, after each call that ran on them) and `ClientChecker` (what clients were told).

1. A step costs a comparison of a few numbers per partition of the machine that ran; only what changed is looked at.
2. The controller's committed image is the truth about leaders and ISRs; the files are the truth about logs.
3. A broker counts as a member of an ISR while it runs under the broker epoch that is registered: one that restarted may have lost data, and its
   registration takes it out.
4. A violation raises `Violation`: the run ends there, at the step that broke the rule.

Source: RL 9; RELIABILITY 2.2 (TypeOk, WeakIsr, StrongIsr, LeaderInIsr, ValidHighWatermark), 2.4. Leaves out: transactions, retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition import Partition
from twisted_broker.testing.mirror import Line, Mirror
from twisted_broker.testing.sim_clock import NodeClock
from twisted_broker.testing.sim_cluster import SimCluster, SimNode
from twisted_broker.testing.sim_history import ToldClients
from twisted_broker.testing.workload import Attempt, Fate, History
from twisted_broker.wire.records import iterate_batches

Key = tuple[bytes, int]


class Violation(Exception):
    """An invariant does not hold."""


class _Seen:
    """One partition on one machine as of its last step."""

    __slots__ = ("cuts", "end", "high_watermark", "isr_state", "leader_epoch", "leads", "log", "min_isr", "mirror", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log: Any = None
        self.mirror: Mirror | None = None
        self.cuts = self.end = self.high_watermark = self.leader_epoch = -1
        self.isr_state: Any = None
        self.min_isr = 0
        self.leads = False


class ClusterChecker:
    """Attach with `cluster.after_step = checker.step`."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.lines: dict[Key, Line] = {}
        self.names: dict[Key, TopicPartition] = {}
        self.keys: dict[TopicPartition, Key] = {}
        self.truth: Any = None
        self.seen: dict[str, dict[TopicPartition, _Seen]] = {name: {} for name in cluster.nodes}
        self.leaders: dict[tuple[Key, int], tuple[str, int]] = {}
        self.matching: dict[Key, dict[tuple[int, int], int]] = {}
        self.unclean_elections = 0
        self.broken = ""
        """what a client's check found: it cannot raise through the client"""
        self._committed: Any = None
        self._broker_epochs: dict[int, int] = {}
        self._dirty: set[Key] = set()
        cluster.after_step, cluster.gone = self.step, self.gone

    def gone(self, node: SimNode) -> None:
        self.seen[node.name] = {}

    # each step

    def step(self, clock: NodeClock) -> None:
        if self.cluster.bugs:
            raise Violation(self.cluster.bugs[0])
        if self.broken:
            raise Violation(self.broken)
        node = self.cluster.nodes.get(clock.name)
        if node is None or node.clock is not clock or node.broker is None:
            return
        controller = node.broker.parts.controller
        if controller is not None and controller.committed is not self._committed:
            self._truth_changed(controller.committed)
        replicas = node.broker.parts.replica_manager
        if replicas is not None:
            for name, partition in replicas.partitions.items():
                self._look(node, name, partition)
                if partition.resting and not replicas.events:
                    self._rests(node, partition)
        if self._dirty:
            for key in sorted(self._dirty):
                self._strong_isr(key)
            self._dirty.clear()

    def _look(self, node: SimNode, name: TopicPartition, partition: Partition) -> None:
        log = partition.log
        seen = self.seen[node.name].get(name)
        if log is None or partition.offline:
            return
        if seen is None or seen.partition is not partition or seen.log is not log:
            seen = self.seen[node.name][name] = _Seen(partition)
            seen.log, seen.mirror = log, Mirror(log, node.disk)
        if seen.end != log.log_end_offset or seen.cuts != log._cuts:
            self._log_changed(node, seen)
        leads = partition.leader_log is not None
        if (
            seen.high_watermark != log.high_watermark
            or seen.leader_epoch != partition.leader_epoch
            or seen.leads != leads
            or seen.isr_state is not partition.isr_state
        ):
            self._state_changed(node, seen, leads)

    def _rests(self, node: SimNode, partition: Partition) -> None:
        """What rests in a follower's session would be read as it was: whatever happened stirred it (`replication.resting`)."""
        for quiet in partition.resting:
            if not quiet.holds():
                raise Violation(f"{node.name} {partition!r}: something happened, but a follower's read of it rests at {quiet.request.fetch_offset}")

    def _log_changed(self, node: SimNode, seen: _Seen) -> None:
        """Log matching, and an epoch cache that agrees with the batches."""
        log, mirror, partition = seen.log, seen.mirror, seen.partition
        assert mirror is not None
        first = mirror.follow()
        key = self._key(partition)
        if mirror.end != log.log_end_offset:
            raise Violation(f"{node.name} {partition!r}: the log ends at {log.log_end_offset}, its file at {mirror.end}")
        matching = self.matching.setdefault(key, {})
        for row in range(first, len(mirror.lasts)):
            known = matching.setdefault((mirror.lasts[row], mirror.epochs[row]), mirror.chains[row])
            if known != mirror.chains[row]:
                raise Violation(f"{node.name} {partition!r}: offset {mirror.lasts[row]} of epoch {mirror.epochs[row]} is not what others hold there")
            if log.leader_epochs.epoch_for_offset(mirror.bases[row]) != mirror.epochs[row]:
                raise Violation(f"{node.name} {partition!r}: batch at {mirror.bases[row]} of epoch {mirror.epochs[row]}, epochs {_epochs(log)}")
        epochs, starts = log.leader_epochs.epochs, log.leader_epochs.start_offsets
        if starts and starts[-1] > log.log_end_offset:
            raise Violation(f"{node.name} {partition!r}: epochs {_epochs(log)} go beyond the log end {log.log_end_offset}")
        if any(a >= b for a, b in pairwise(epochs)) or any(a >= b for a, b in pairwise(starts)):
            raise Violation(f"{node.name} {partition!r}: epochs {_epochs(log)} do not grow")
        seen.end, seen.cuts = log.log_end_offset, log._cuts
        self._dirty.add(key)

    def _state_changed(self, node: SimNode, seen: _Seen, leads: bool) -> None:
        partition, log = seen.partition, seen.log
        where = f"{node.name} {partition!r}"
        if not 0 <= log.high_watermark <= log.log_end_offset:
            raise Violation(f"{where}: high watermark {log.high_watermark}, log end {log.log_end_offset}")
        if not log.log_start_offset <= log.last_stable_offset <= max(log.high_watermark, log.log_start_offset):
            raise Violation(f"{where}: last stable offset {log.last_stable_offset} outside {log.log_start_offset}..{log.high_watermark}")
        if partition.leader_epoch < seen.leader_epoch:
            raise Violation(f"{where}: leader epoch was {seen.leader_epoch}")
        if leads:
            self._leader_changed(node, seen, where)
        seen.high_watermark, seen.leader_epoch = log.high_watermark, partition.leader_epoch
        seen.leads, seen.isr_state = leads, partition.isr_state
        seen.min_isr = partition.min_isr if leads else 0
        self._dirty.add(self._key(partition))

    def _leader_changed(self, node: SimNode, seen: _Seen, where: str) -> None:
        partition, log = seen.partition, seen.log
        key, line = self._key(partition), self._line(self._key(partition))
        epoch = partition.leader_epoch
        if self.leaders.setdefault((key, epoch), (node.name, node.incarnation)) != (node.name, node.incarnation):
            raise Violation(f"{where}: {self.leaders[key, epoch]} leads it in the same epoch")
        if partition.leader_id not in partition.isr_state.isr:
            raise Violation(f"{where}: the leader is not in its ISR")
        assert seen.mirror is not None
        if not seen.leads or epoch != seen.leader_epoch:
            self._new_leader(where, partition, line, seen.mirror)
        elif log.high_watermark < seen.high_watermark:
            raise Violation(f"{where}: its high watermark went back from {seen.high_watermark} to {log.high_watermark}")
        if log.high_watermark > max(seen.high_watermark, 0) and epoch >= line.unclean_epoch:
            self._advanced(node, seen, line, where)

    def _new_leader(self, where: str, partition: Partition, line: Line, mirror: Mirror) -> None:
        if line.waits_for_leader and partition.leader_epoch >= line.unclean_epoch:
            line.reset(mirror, partition.leader_epoch)
        truth = self._registration(self._key(partition))
        current = truth is not None and truth.leader_epoch == partition.leader_epoch
        if current and (mirror.end < line.end or not line.agrees(mirror, line.end)):
            raise Violation(f"{where}: leads without all that was committed up to {line.end}, it ends at {mirror.end}")

    def _advanced(self, node: SimNode, seen: _Seen, line: Line, where: str) -> None:
        """A leader exposed more: only with enough replicas, only what is committed, and held by its own ISR (WeakIsr)."""
        partition, log, mirror = seen.partition, seen.log, seen.mirror
        assert mirror is not None
        mark = log.high_watermark
        was_led = seen.leads and seen.leader_epoch == partition.leader_epoch
        if was_led and len(partition.isr_state.isr) < partition.min_isr and len(seen.isr_state.isr) < seen.min_isr:
            raise Violation(f"{where}: the high watermark moved to {mark} below the minimum ISR {partition.min_isr}")
        if line.waits_for_leader:
            return
        if not line.agrees(mirror, min(mark, line.end)):
            raise Violation(f"{where}: exposes up to {mark} what differs from what was committed before, up to {line.end}")
        line.extend(mirror, mark)
        if was_led:
            for member in sorted(partition.isr_state.isr):
                self._holds(member, self._key(partition), mirror, mark, f"{where}: its high watermark is {mark}, but member", node)

    # the truth

    def _truth_changed(self, image: Any) -> None:
        before, self._committed = self.truth, image
        if image.offset < 0:
            return
        if before is not None and image.offset < before.offset:
            raise Violation(f"the controller lost metadata: {before.offset} was committed, now it ends at {image.offset}")
        self.truth = image
        for broker in image.brokers.values():
            if broker.epoch < self._broker_epochs.get(broker.id, -1):
                raise Violation(f"broker {broker.id} has epoch {broker.epoch}, it had {self._broker_epochs[broker.id]}")
            self._broker_epochs[broker.id] = broker.epoch
        for topic_id, topic in image.topics_by_id.items():
            old = None if before is None else before.topics_by_id.get(topic_id)
            if old is topic or old == topic:
                continue
            for number, partition in topic.partitions.items():
                known = None if old is None else old.partitions.get(number)
                if known != partition:
                    self._registration_changed((topic_id, number), TopicPartition(topic.name, number), known, partition)

    def _registration_changed(self, key: Key, name: TopicPartition, old: Any, new: Any) -> None:
        self.names[key] = name
        self.keys[name] = key
        self._dirty.add(key)
        where = f"{name} {new}"
        if new.leader >= 0 and new.leader not in new.isr:
            raise Violation(f"{where}: the leader is not in the ISR")
        if not set(new.isr) <= set(new.replicas) or set(new.isr) & set(new.elr):
            raise Violation(f"{where}: ISR and eligible replicas do not fit the assignment")
        if old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.partition_epoch <= old.partition_epoch:
            raise Violation(f"{where}: epochs did not grow, before: {old}")
        elected = new.leader >= 0 and (new.leader != old.leader or new.leader_epoch != old.leader_epoch)
        if elected and new.leader not in (*old.isr, *old.elr):
            line = self._line(key)
            line.unclean_epoch, line.waits_for_leader = new.leader_epoch, True
            self.unclean_elections += 1
            self.cluster.note("checker", f"unclean election of {name}: {old} -> {new}")

    def _strong_isr(self, key: Key) -> None:
        """StrongIsr: what was exposed is on everybody who can be elected cleanly."""
        registration, line = self._registration(key), self._line(key)
        if registration is None or line.waits_for_leader or not line.ends:
            return
        for member in registration.isr:
            node = self.cluster.nodes[f"n{member}"]
            found = self._member(node, key)
            if found is None:
                continue
            if found.end < line.end or not line.agrees(found, line.end):
                raise Violation(
                    f"{self.names[key]}: n{member} is in the ISR {registration.isr} (partition epoch {registration.partition_epoch}), ends at"
                    f" {found.end}, and lacks what was committed up to {line.end}"
                )

    def _holds(self, member: int, key: Key, mirror: Mirror, mark: int, words: str, leader: SimNode) -> None:
        node = self.cluster.nodes[f"n{member}"]
        if node is leader or leader.broker is None:
            return
        known = leader.broker._observer.image.brokers.get(member)
        if node.broker is None or known is None or node.broker._lifecycle is None or known.epoch != node.broker._lifecycle.broker_epoch:
            return
        found = self._member(node, key)
        if found is not None and (found.end < mark or found.chain_at(mark) != mirror.chain_at(mark)):
            raise Violation(f"{words} n{member} does not hold that, it ends at {found.end}")

    def _member(self, node: SimNode, key: Key) -> Mirror | None:
        """The log of a broker that runs under its registered epoch; None when there is nothing to hold it to."""
        if node.broker is None or node.broker._lifecycle is None or self.truth is None:
            return None
        registered = self.truth.brokers.get(node.node_id)
        if registered is None or registered.epoch != node.broker._lifecycle.broker_epoch:
            return None
        seen = self.seen[node.name].get(self.names[key])
        return None if seen is None or self._key(seen.partition) != key or seen.partition.offline else seen.mirror

    # names

    def _key(self, partition: Partition) -> Key:
        key = (bytes(partition.topic_id), partition.topic_partition.partition)
        self.names.setdefault(key, partition.topic_partition)
        self.keys.setdefault(partition.topic_partition, key)
        return key

    def _line(self, key: Key) -> Line:
        found = self.lines.get(key)
        if found is None:
            found = self.lines[key] = Line()
        return found

    def _registration(self, key: Key) -> Any:
        topic = None if self.truth is None else self.truth.topics_by_id.get(key[0])
        return None if topic is None else topic.partitions.get(key[1])

    def line_of(self, name: TopicPartition) -> Line:
        return self._line(self.keys[name]) if name in self.keys else Line()

    # the end

    def converged(self) -> str:
        """Empty when every replica is back in its ISR and all logs are equal and committed; else what is missing."""
        if self.truth is None:
            return "no metadata"
        for topic_id in sorted(self.truth.topics_by_id):
            for number, registration in self.truth.topics_by_id[topic_id].partitions.items():
                missing = self._missing((topic_id, number), registration)
                if missing:
                    return missing
        return ""

    def without_candidates(self) -> list[str]:
        """Topics with a partition that has no leader and nobody to elect: a changed minimum ISR made the controller forget (KIP-966)."""
        found = (
            []
            if self.truth is None
            else [
                topic.name
                for topic in self.truth.topics_by_id.values()
                if any(each.leader < 0 and not (each.isr or each.elr or each.last_known_elr) for each in topic.partitions.values())
            ]
        )
        return sorted(found)

    def _missing(self, key: Key, registration: Any) -> str:
        name = self.names[key]
        if registration.leader < 0 or set(registration.isr) != set(registration.replicas):
            return f"{name}: {registration}"
        found = []
        for replica in registration.replicas:
            seen = self.seen[f"n{replica}"].get(name)
            if seen is None or seen.mirror is None:
                return f"{name}: n{replica} does not hold it"
            if replica == registration.leader and (not seen.leads or seen.high_watermark != seen.mirror.end):
                return f"{name}: n{replica} leads {seen.leads}, high watermark {seen.high_watermark}, log end {seen.mirror.end}"
            found.append((seen.mirror.end, seen.mirror.chain_at(seen.mirror.end), seen.mirror.lasts))
        if any(each != found[0] for each in found):
            return f"{name}: the replicas differ, they end at {[each[0] for each in found]}"
        return ""

    def final_values(self, name: TopicPartition) -> dict[int, bytes]:
        """Offset -> value of the leader's log."""
        registration = self._registration(self.keys[name])
        seen = self.seen[f"n{registration.leader}"][name]
        node = self.cluster.nodes[f"n{registration.leader}"]
        values: dict[int, bytes] = {}
        for segment in seen.log.segments:
            data = bytes(node.disk.nodes[segment.log.path].data[: segment.size])
            for batch in iterate_batches(data, check_crc=True):
                values |= {record.offset: bytes(record.value or b"") for record in batch.records(1 << 20)}
        return values


class ClientChecker:
    """Checks what clients are told against what was committed. Attached to a `History`."""

    def __init__(self, cluster: ClusterChecker, history: History) -> None:
        self.cluster, self.history = cluster, history
        self.values: dict[TopicPartition, dict[int, bytes]] = {}
        self.last_ack_seconds = 0.0
        self._positions: dict[str, int] = {}
        self._marks: dict[tuple[str, TopicPartition, int], int] = {}
        self._ends: dict[tuple[str, TopicPartition], int] = {}
        self._resets: dict[TopicPartition, int] = {}
        self._told = ToldClients()
        history.acked, history.consumed = self.acked, self.consumed
        history.mark_seen, history.out_of_range = self.mark_seen, self.out_of_range
        history.note = cluster.cluster.note

    def acked(self, attempt: Attempt) -> None:
        """RL 9: an acknowledged record is committed."""
        self.last_ack_seconds = self.cluster.cluster.sim.now
        line = self.cluster.line_of(attempt.partition)
        if attempt.epoch < line.unclean_epoch:
            return  # a leader that an unclean election left behind, and that does not know it yet: nothing is owed
        if attempt.base_offset < 0 or attempt.base_offset + len(attempt.values) > line.top:
            self._broken(f"{attempt!r} was acknowledged, but only {line.top} was ever committed")
        self._note_values(attempt.partition, attempt.base_offset, attempt.values, "the producer")

    def consumed(self, who: str, name: TopicPartition, base: int, last: int, epoch: int, crc: int, values: Sequence[bytes]) -> None:
        """RL 9: nothing uncommitted, no gap, no reordering."""
        self._told.consumed(who, name, base, values)
        line = self.cluster.line_of(name)
        if last + 1 > line.top and epoch >= line.unclean_epoch:
            self._broken(f"{who} read {name} up to {last}, but only {line.top} was ever committed")
        expected = self._positions.get(who, 0)
        if base != expected and self._resets.get(name, 0) == len(line.resets):
            self._broken(f"{who} read {name} at {base}, not at {expected}")
        self._resets[name] = len(line.resets)
        self._positions[who] = last + 1
        self._note_values(name, base, values, who)

    def _note_values(self, name: TopicPartition, base: int, values: Sequence[bytes], who: str) -> None:
        known = self.values.setdefault(name, {})
        for offset, value in enumerate(values, base):
            if known.setdefault(offset, value) != value:
                if not self.cluster.line_of(name).resets and not self.cluster.line_of(name).waits_for_leader:
                    self._broken(f"{name} at {offset}: {who} was told {value!r}, before it was {known[offset]!r}")
                known[offset] = value

    def mark_seen(self, who: str, name: TopicPartition, epoch: int, mark: int) -> None:
        """RL 9: the high watermark that a client saw never goes back under the same leader; the end that ListOffsets says never at all."""
        line = self.cluster.line_of(name)
        if mark < self._marks.get((who, name, epoch), -1) and epoch >= 0:
            self._broken(f"{who} saw the mark {mark} of {name} in epoch {epoch} after {self._marks[who, name, epoch]}")
        self._marks[who, name, epoch] = mark
        consumer, _, is_end = who.partition(" ")
        highest = self._ends.get((consumer, name), -1)
        if is_end and mark < highest and not line.resets and not line.waits_for_leader:
            self._broken(f"{consumer} was told that {name} ends at {mark}, after it saw {highest}")
        self._ends[consumer, name] = max(highest, mark)

    def out_of_range(self, who: str, name: TopicPartition, epoch: int, offset: int) -> None:
        """Without an unclean election nothing that a consumer reached may vanish."""
        line = self.cluster.line_of(name)
        if not line.resets and not line.waits_for_leader and epoch >= 0:
            self._broken(f"{who} reads {name} at {offset} in epoch {epoch}: out of range, and no unclean election was recorded")
        self._told.moved(who)
        self._positions[who] = 0
        self._resets[name] = -1

    def at_the_end(self) -> None:
        """RL 9, after healing: what was acknowledged and is owed is there once, what was refused is not there."""
        finals = {name: self.cluster.final_values(name) for name in sorted({attempt.partition for attempt in self.history.attempts})}
        places: dict[tuple[TopicPartition, bytes], int] = {}
        twice: set[tuple[TopicPartition, bytes]] = set()
        for name, values in finals.items():
            for offset, value in values.items():
                if (name, value) in places:
                    twice.add((name, value))
                places[name, value] = offset
        for attempt in self.history.attempts:
            self._attempt_at_the_end(attempt, finals[attempt.partition], places, twice)
        unclean = {name for name in finals if self.cluster.line_of(name).unclean_epoch >= 0}
        for anomaly in self._told.anomalies(self.history.attempts, unclean):
            self._broken(str(anomaly))

    def _attempt_at_the_end(
        self, attempt: Attempt, final: dict[int, bytes], places: dict[tuple[TopicPartition, bytes], int], twice: set[tuple[TopicPartition, bytes]]
    ) -> None:
        name = attempt.partition
        for index, value in enumerate(attempt.values):
            if attempt.fate is Fate.ACKED and self._is_owed(attempt) and final.get(attempt.base_offset + index) != value:
                self._broken(f"{attempt!r} was acknowledged and is lost: {final.get(attempt.base_offset + index)!r} is there")
            if attempt.fate is Fate.REFUSED and (name, value) in places:
                self._broken(f"{attempt!r} was refused, but is at {places[name, value]}")
            if attempt.idempotent and (name, value) in twice:
                self._broken(f"{attempt!r} is there twice, once at {places[name, value]}")

    def _is_owed(self, attempt: Attempt) -> bool:
        end = attempt.base_offset + len(attempt.values)
        resets = self.cluster.line_of(attempt.partition).resets
        return all(end <= kept or attempt.epoch >= epoch for epoch, kept in resets)

    def _broken(self, text: str) -> None:
        self.cluster.broken = self.cluster.broken or text


def _epochs(log: Any) -> str:
    return " ".join(f"{epoch}@{start}" for epoch, start in log.leader_epochs.entries())
