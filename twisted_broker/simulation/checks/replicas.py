"""The rules for one replica, checked whenever it changed: its log, its watermarks, its leadership.

Owns `ReplicaChecker`. The files are the truth about logs.

Source: RL 9; RELIABILITY 2.2 (TypeOk, LeaderInIsr, ValidHighWatermark), log matching. Not here:
what other members hold (`simulation/checks/isr_members.py`), which segments retention may delete.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.idle_partitions import idle_reads
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.checks.committed_state import CommittedState, Key, Violation
from twisted_broker.simulation.checks.compacted import CompactedChecker
from twisted_broker.simulation.checks.isr_members import Members, Seen
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.simulation.node import SimNode

_LOOKS_BEFORE_TOLD = 1000
"""One for each call on the machine."""


class _Held(NamedTuple):
    """A batch that somebody held: its base offset, what stands for it, and (last offset, epoch) of
    the one before it, None where its log began with it, or all before it was deleted.
    """

    base: int
    content: int
    before: tuple[int, int] | None

    def matches(self, other: _Held) -> bool:
        """Log matching, by induction: equal, behind equal ones."""
        return self[:2] == other[:2] and (
            self.before is None or other.before is None or self.before == other.before
        )


class ReplicaChecker:
    """Looks at replicas that changed; raises `Violation`."""

    def __init__(self, truth: CommittedState, members: Members) -> None:
        self.truth, self.members = truth, members
        self.compacted = CompactedChecker(truth)
        self.leaders: dict[tuple[Key, int], tuple[str, int]] = {}
        """(partition, leader epoch) -> (machine, its process) that leads then"""
        self.matching: dict[Key, dict[tuple[int, int], _Held]] = {}
        """partition -> (last offset, epoch) of each batch that anybody held -> what it was"""
        self._own_starts: dict[tuple[str, Key], int] = {}
        """(machine, partition) -> its log start in an epoch before an unclean election"""
        self._looks_before_told: Counter[tuple[str, int, TopicPartition]] = Counter()
        """(machine, its process, partition that is offline) -> looks while a read was idle"""

    # the log

    def log_changed(self, node: SimNode, seen: Seen) -> None:
        """Log matching, and an epoch cache that agrees with the batches."""
        if seen.log.gap is not None:
            return  # nobody led when it was opened: whether what lies behind stays is not decided
        key, where = seen.key, f"{node.name} {seen.partition!r}"
        try:
            first = seen.mirror.follow()
        except ValueError as error:
            raise Violation(f"{where}: its file is no log: {error}") from error
        file_end, end = seen.mirror.end, seen.log.log_end_offset
        if file_end != end and not self.truth.line(key).was_cut_where_cleaned(file_end, end):
            raise Violation(f"{where}: the log ends at {end}, its file at {file_end}")
        for row in range(first, len(seen.mirror.lasts)):
            self._check_batch(key, seen, row, where)
        _check_epochs(seen.log, where)
        self.compacted.copied(node.name, key, seen.log, node.world.sim.now)
        seen.end, seen.truncations = end, seen.log.truncations
        self.truth.touched.add(key)

    def _check_batch(self, key: Key, seen: Seen, row: int, where: str) -> None:
        log, mirror, line = seen.log, seen.mirror, self.truth.line(key)
        last, epoch, base = mirror.lasts[row], mirror.epochs[row], mirror.bases[row]
        if base < line.cleaned_upto:
            return  # `CompactedChecker` looks at these
        held = _Held(
            base,
            mirror.sums[row] - (mirror.sums[row - 1] if row else 0),
            (mirror.lasts[row - 1], mirror.epochs[row - 1]) if row and base > line.floor else None,
        )
        known = self.matching.setdefault(key, {})
        other = known.setdefault((last, epoch), held)
        if other.before is None:
            known[last, epoch] = held
        if not held.matches(other) and not (
            # Batches of an epoch that an unclean election took part of were truncated, and others
            # of older epochs written in their place; with a loss of power they come back behind
            # those. Epochs do not fall there, so no recovery can know.
            epoch < line.unclean_epoch and held._replace(before=other.before) == other
        ):
            raise Violation(
                f"{where}: offset {last} of epoch {epoch} is not what others hold there: {held}, "
                f"others {other}"
            )
        # A deletion takes the entries of its epochs with it; the log start may be forgotten.
        known = max(base, log.log_start_offset, line.deleted_upto)
        if known <= last and log.leader_epochs.epoch_for_offset(known) != epoch:
            raise Violation(f"{where}: batch at {base} of epoch {epoch}, epochs {_epochs(log)}")

    # marks and leadership

    def check_idle(self, node: SimNode, partition: Partition) -> None:
        """What is idle in a fetch session would be read as it was: whatever happened woke it
        (`replication.idle_partitions`).
        """
        log = partition.log
        if node.stopping and log is not None and log.failed is not None:
            return  # closing it failed: it serves nobody any more, so nobody is told
        for idle in idle_reads(partition):
            if not idle.holds() and not self._is_told_later(node, partition):
                raise Violation(
                    f"{node.name} {partition!r}: something happened, but a read at "
                    f"{idle.request.fetch_offset} is idle"
                )

    def _is_told_later(self, node: SimNode, partition: Partition) -> bool:
        """It is offline since its directory failed: who waits is told some turns later
        (`ReplicaManager.directory_failed`), and was told nothing wrong.
        """
        if not partition.offline:
            return False
        looks = (node.name, node.incarnation, partition.topic_partition)
        self._looks_before_told[looks] += 1
        return self._looks_before_told[looks] <= _LOOKS_BEFORE_TOLD

    def state_changed(self, node: SimNode, seen: Seen, leads: bool) -> None:
        partition, log = seen.partition, seen.log
        where = f"{node.name} {partition!r}"
        if not 0 <= log.high_watermark <= log.log_end_offset:
            raise Violation(
                f"{where}: high watermark {log.high_watermark}, log end {log.log_end_offset}"
            )
        if (
            not log.log_start_offset
            <= log.last_stable_offset
            <= max(log.high_watermark, log.log_start_offset)
        ):
            raise Violation(
                f"{where}: last stable offset {log.last_stable_offset} outside "
                f"{log.log_start_offset}..{log.high_watermark}"
            )
        if partition.leader_epoch < seen.leader_epoch:
            raise Violation(f"{where}: leader epoch was {seen.leader_epoch}")
        if leads:
            self._leader_changed(node, seen, where)
        if log.log_start_offset != seen.log_start or partition.leader_epoch != seen.leader_epoch:
            self._log_start_moved(node, seen, where)
        seen.high_watermark, seen.leader_epoch = log.high_watermark, partition.leader_epoch
        seen.leads, seen.isr_state = leads, partition.isr_state
        seen.min_isr = partition.min_isr if leads else 0
        self.truth.touched.add(seen.key)

    def _log_start_moved(self, node: SimNode, seen: Seen, where: str) -> None:
        """Only a user or retention deletes, and only what is committed."""
        key, start = seen.key, seen.log.log_start_offset
        line = self.truth.line(key)
        if seen.partition.leader_epoch < line.unclean_epoch:
            # It does not know of the unclean election yet: what it commits and deletes is lost with
            # its epoch, here as in Kafka.
            self._own_starts[node.name, key] = seen.log_start = start
            return
        own = self._own_starts.get((node.name, key), 0)
        if line.has_lost and seen.log.high_watermark > line.top:
            # Retention reaches up to what it committed for itself before it knew.
            own = max(own, seen.log.high_watermark)
        if line.top < start <= own:
            # It knows now, and was not told to truncate yet; it may have been restarted meanwhile.
            self._own_starts[node.name, key] = seen.log_start = start
            return
        if start > line.top:
            raise Violation(f"{where}: the log start is {start}, only {line.top} was committed")
        if start > self.truth.may_delete_upto(key):
            raise Violation(f"{where}: the log start is {start}, but nobody asked for that")
        line.deleted_upto = max(line.deleted_upto, start)
        seen.log_start = start

    def _leader_changed(self, node: SimNode, seen: Seen, where: str) -> None:
        partition, log, epoch = seen.partition, seen.log, seen.partition.leader_epoch
        key = seen.key
        line = self.truth.line(key)
        if self.leaders.setdefault((key, epoch), (node.name, node.incarnation)) != (
            node.name,
            node.incarnation,
        ):
            raise Violation(f"{where}: {self.leaders[key, epoch]} leads it in the same epoch")
        if partition.leader_id not in partition.isr_state.isr:
            raise Violation(f"{where}: the leader is not in its ISR")
        is_new = not seen.leads or epoch != seen.leader_epoch
        if is_new:
            self._new_leader(seen, line, where)
        elif log.high_watermark < seen.high_watermark:
            raise Violation(
                f"{where}: its high watermark went back from {seen.high_watermark} to "
                f"{log.high_watermark}"
            )
        # Who led on after an unclean election may be elected by the next, with a mark of its own.
        known = min(seen.high_watermark, line.end) if is_new else seen.high_watermark
        if log.high_watermark > max(known, 0):
            if epoch >= line.unclean_epoch:
                self._advanced(node, seen, line, where)
            elif not line.holds(seen.mirror, log.high_watermark):
                # What it acknowledges now, as a coordinator too, is lost with its epoch.
                line.has_lost = True

    def _new_leader(self, seen: Seen, line: Line, where: str) -> None:
        epoch, mirror = seen.partition.leader_epoch, seen.mirror
        if line.waits_for_leader and epoch >= line.unclean_epoch:
            line.reset(mirror, epoch)
        registration = self.truth.registration(seen.key)
        current = registration is not None and registration.leader_epoch == epoch
        end = line.end_to_hold(line.end)
        if current and (mirror.end < end or not line.agrees(mirror, line.end)):
            raise Violation(
                f"{where}: leads without all that was committed up to {line.end}, it ends at "
                f"{mirror.end}"
            )

    def _advanced(self, node: SimNode, seen: Seen, line: Line, where: str) -> None:
        """A leader exposed more: only with enough replicas, only what is committed, and held by
        its own ISR.
        """
        partition, mirror, mark = seen.partition, seen.mirror, seen.log.high_watermark
        was_led = seen.leads and seen.leader_epoch == partition.leader_epoch
        if (
            was_led
            and len(partition.isr_state.isr) < partition.min_isr
            and len(seen.isr_state.isr) < seen.min_isr
        ):
            raise Violation(
                f"{where}: the high watermark moved to {mark} below the minimum ISR "
                f"{partition.min_isr}"
            )
        if line.waits_for_leader:
            return
        if not line.agrees(mirror, min(mark, line.end)):
            raise Violation(
                f"{where}: exposes up to {mark} what differs from what was committed before, "
                f"up to {line.end}"
            )
        line.extend(mirror, mark)
        self.compacted.exposed(seen.key, seen.log, node.disk, mark, node.world.sim.now)
        if was_led:
            self.members.check_weak(node, seen, mark, where)


def _check_epochs(log: Any, where: str) -> None:
    epochs, starts = log.leader_epochs.epochs, log.leader_epochs.start_offsets
    if starts and starts[-1] > log.log_end_offset:
        raise Violation(
            f"{where}: epochs {_epochs(log)} go beyond the log end {log.log_end_offset}"
        )
    if any(a >= b for a, b in pairwise(epochs)) or any(a >= b for a, b in pairwise(starts)):
        raise Violation(f"{where}: epochs {_epochs(log)} do not grow")


def _epochs(log: Any) -> str:
    return " ".join(f"{epoch}@{start}" for epoch, start in log.leader_epochs.entries())
