"""Answers to clients, checked against the committed records.

Owns `ClientChecker`: each fact as it becomes known, and at the end what became of every batch.

1. What it finds goes to the cluster's checker, which raises it after the step: a check must not
   raise through a client.
2. Where an unclean election took something, or may have, less is owed; everything else is owed as
   always.

Source: RL 9; RELIABILITY 2.4. Not here: what brokers hold (`simulation/checks/cluster.py`),
transactions (`simulation/checks/transactions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.end_state import final_log, final_values, is_there
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.client_history import ClientHistory
from twisted_broker.simulation.client_notes import Attempt, Notes
from twisted_broker.topic_names import TRANSACTIONS_TOPIC


class ClientChecker:
    """Checks the answers to clients against what was committed. Attached to `Notes`."""

    def __init__(self, checker: ClusterChecker, notes: Notes) -> None:
        self.checker, self.notes = checker, notes
        self.values: dict[TopicPartition, dict[int, bytes]] = {}
        self.last_ack_seconds = 0.0
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._marks: dict[tuple[str, TopicPartition, int], int] = {}
        self._ends: dict[tuple[str, TopicPartition], int] = {}
        self._resets: dict[TopicPartition, int] = {}
        self._of_older_epochs: set[Attempt] = set()
        """answered when nobody led yet in the epoch that their producer knew"""
        self._history = ClientHistory()
        notes.acked, notes.consumed = self.acked, self.consumed
        notes.out_of_order = self.out_of_order
        notes.mark_seen, notes.out_of_range = self.mark_seen, self.out_of_range
        notes.deleting, notes.began_anew = self.deleting, self.began_anew
        notes.note = checker.cluster.note

    def acked(self, attempt: Attempt) -> None:
        """RL 9: an acknowledged record is committed."""
        self.last_ack_seconds = self.checker.cluster.sim.now
        line = self.checker.truth.line_of(attempt.partition)
        attempt.deleted_upto = line.deleted_upto
        if attempt.acks != -1:
            key = self.checker.truth.keys.get(attempt.partition)
            if (key, attempt.epoch) not in self.checker.replicas.leaders:
                self._of_older_epochs.add(attempt)
            return
        if attempt.epoch < line.unclean_epoch or line.waits_for_leader:
            # a leader that an unclean election left behind, and that does not know it yet: nothing
            # is owed; it may be the one that was elected, and its producer knows before it
            return
        if attempt.base_offset < 0 or attempt.base_offset + len(attempt.values) > line.top:
            self._broken(f"{attempt!r} was acknowledged, but only {line.top} was ever committed")
        if not self._was_given_twice(attempt):
            self._note_values(
                attempt.partition, attempt.base_offset, attempt.values, "the producer"
            )

    def out_of_order(self, attempt: Attempt) -> None:
        """RELIABILITY 2.4: what follows an acknowledged batch of its producer is in order, and one
        of the last five that comes again is known.
        """
        before, line = attempt.after, self.checker.truth.line_of(attempt.partition)
        if before is None or before.fate is not Fate.ACKED:
            # A leader that does not know the producer takes any sequence (KIP-360): of the first
            # batches of a session, sent together, a later one may come first.
            return
        if before.base_offset + len(before.values) <= line.deleted_upto:
            # All by which a leader knows the producer was deleted: after a restart the same.
            return
        if self._was_deposed(attempt):
            # It has not heard so, and lacks what a later leader acknowledged: as in Kafka.
            return
        if self._is_fenced(attempt):
            # A deposed leader may hold its transaction open yet, and have seen the next instance's
            # batch first: here as in Kafka that one's sequence counts.
            return
        # A leader that an unclean election deposed may have acknowledged what nobody has.
        if not line.waits_for_leader and self.is_owed(before):
            self._broken(f"{attempt!r} follows what was acknowledged, and is out of order")

    def _was_deposed(self, attempt: Attempt) -> bool:
        """Whether another broker leads by now than the one that answered."""
        key, (leader, epoch) = self.checker.truth.keys.get(attempt.partition), attempt.asked
        found = None if key is None else self.checker.truth.registration(key)
        return found is not None and found.leader != leader and found.leader_epoch > epoch >= 0

    def _is_fenced(self, attempt: Attempt) -> bool:
        """Whether another instance was given a later epoch of its transactional producer."""
        if attempt.session is None:
            return False
        producer_id, epoch = attempt.session
        return any(given == producer_id and later > epoch for given, later in self.notes.sessions)

    def consumed(
        self,
        who: str,
        name: TopicPartition,
        base: int,
        last: int,
        epoch: int,
        crc: int,
        values: Sequence[bytes],
    ) -> None:
        """RL 9: nothing uncommitted, no gap, no reordering."""
        self._history.consumed(who, name, base, values)
        line = self.checker.truth.line_of(name)
        if last + 1 > line.top and epoch >= line.unclean_epoch:
            self._broken(f"{who} read {name} up to {last}, but only {line.top} was ever committed")
        expected = self._positions.get((who, name), 0)
        if base != expected and self._resets.get(name, 0) == len(line.resets):
            self._broken(f"{who} read {name} at {base}, not at {expected}")
        self._resets[name] = len(line.resets)
        self._positions[who, name] = last + 1
        self._note_values(name, base, values, who)

    def _note_values(
        self, name: TopicPartition, base: int, values: Sequence[bytes], who: str
    ) -> None:
        known = self.values.setdefault(name, {})
        line = self.checker.truth.line_of(name)
        for offset, value in enumerate(values, base):
            if known.setdefault(offset, value) != value:
                if line.is_whole and offset >= line.deleted_upto:
                    self._broken(
                        f"{name} at {offset}: {who} read {value!r}, before it was {known[offset]!r}"
                    )
                known[offset] = value

    def mark_seen(self, who: str, name: TopicPartition, epoch: int, mark: int) -> None:
        """RL 9: the high watermark that a client saw never goes back under the same leader; the
        end that ListOffsets says never at all.
        """
        line = self.checker.truth.line_of(name)
        if mark < self._marks.get((who, name, epoch), -1) and epoch >= 0:
            self._broken(
                f"{who} saw the mark {mark} of {name} in epoch {epoch} after "
                f"{self._marks[who, name, epoch]}"
            )
        self._marks[who, name, epoch] = mark
        consumer, _, is_end = who.partition(" ")
        highest = self._ends.get((consumer, name), -1)
        if is_end and mark < highest and line.is_whole:
            self._broken(
                f"{consumer} was answered that {name} ends at {mark}, after it saw {highest}"
            )
        self._ends[consumer, name] = max(highest, mark)

    def deleting(self, name: TopicPartition, upto: int) -> None:
        known = self.checker.truth.deletions
        known[name] = max(known.get(name, 0), upto)

    def began_anew(self, who: str, name: TopicPartition) -> None:
        """It reads this partition from 0 on, whatever it read of it before."""
        self._history.moved(who)
        self._positions[who, name] = 0

    def out_of_range(self, who: str, name: TopicPartition, epoch: int, offset: int) -> None:
        """Without an unclean election nothing that a consumer reached may vanish, but what was
        deleted below it.
        """
        line = self.checker.truth.line_of(name)
        if line.is_whole and epoch >= 0 and offset >= line.deleted_upto:
            self._broken(
                f"{who} reads {name} at {offset} in epoch {epoch}: out of range, and no "
                "unclean election was recorded"
            )
        self._history.moved(who)
        self._positions[who, name] = 0
        self._resets[name] = -1

    def at_the_end(self) -> None:
        """RL 9, after healing: what was acknowledged and is owed is there once, what was refused
        is not there.
        """
        finals = _Finals(self.checker, self.notes.attempts)
        kept = [each for each in self.notes.attempts if each.partition in finals.values]
        for attempt in kept:
            self._attempt_at_the_end(attempt, finals)
        unclean = {
            name for name in finals.values if self.checker.truth.line_of(name).unclean_epoch >= 0
        }
        deleted = {name: self.checker.truth.line_of(name).deleted_upto for name in finals.values}
        unsure = {attempt for attempt in kept if self._was_given_twice(attempt)}
        for anomaly in self._history.anomalies(kept, unclean, deleted, unsure):
            self._broken(str(anomaly))

    def _attempt_at_the_end(self, attempt: Attempt, finals: _Finals) -> None:
        name = attempt.partition
        line = self.checker.truth.line_of(name)
        deleted_upto = line.deleted_upto
        # An unclean election may have begun anew below that.
        unowed_upto = deleted_upto if line.is_whole else 0
        # When it was answered; what was not may have been appended at any time.
        known_upto = attempt.deleted_upto if attempt.base_offset >= 0 else deleted_upto
        for index, value in enumerate(attempt.values):
            found, place = (
                finals.values[name].get(attempt.base_offset + index),
                finals.places.get((name, value)),
            )
            # Nobody is owed what any replica deleted: another one may lead, with other records.
            kept = attempt.base_offset + index >= max(finals.starts[name], unowed_upto)
            if attempt.fate is Fate.ACKED and kept and self.is_owed(attempt) and found != value:
                self._broken(f"{attempt!r} was acknowledged and is lost: {found!r} is there")
            if attempt.acks == 1 and kept and self._its_leader_leads(attempt) and found != value:
                self._broken(f"{attempt!r} was taken by a leader that leads on, and is lost")
            if attempt.fate is Fate.REFUSED and place is not None:
                self._broken(f"{attempt!r} was refused, but is at {place}")
            # Who began with that log start knew no producer, and others may hold what lies below.
            if attempt.idempotent and finals.twice.get((name, value), -1) >= known_upto:
                self._broken(f"{attempt!r} is there twice, once at {place}")

    def _its_leader_leads(self, attempt: Attempt) -> bool:
        """Whether a leader that answered acks=1 never changed since. One that led before, and leads
        again, may have been told by the leader between to truncate what it answered when its
        producer knew of the last election already: here as in Kafka a batch names no epoch.
        """
        if attempt in self._of_older_epochs:
            return False
        truth = self.checker.truth
        registration = truth.registration(truth.keys[attempt.partition])
        return attempt.was_answered and registration.leader_epoch == attempt.epoch

    def is_owed(self, attempt: Attempt) -> bool:
        """Whether what was acknowledged must be where it was answered."""
        if self._was_given_twice(attempt):
            return False
        end = attempt.base_offset + len(attempt.values)
        resets = self.checker.truth.line_of(attempt.partition).resets
        return all(end <= kept or attempt.epoch >= epoch for epoch, kept in resets)

    def _was_given_twice(self, attempt: Attempt) -> bool:
        """Whether `__transaction_state` lost that the attempt's epoch was given: where it was given
        again, what came first under it is the answer to what came later.
        """
        given_twice = attempt.session is not None and self.notes.sessions[attempt.session] > 1
        return given_twice and not self.checker.truth.is_complete(TRANSACTIONS_TOPIC)

    def _broken(self, text: str) -> None:
        self.checker.broken = self.checker.broken or text


class _Finals:
    """What the logs hold at the end.

    `values`: partition -> offset -> value; `starts`: partition -> its log start; `places`:
    (partition, value) -> its last offset; `twice`: the one before that.
    """

    def __init__(self, checker: ClusterChecker, attempts: Sequence[Attempt]) -> None:
        names = [
            name
            for name in sorted({attempt.partition for attempt in attempts})
            if is_there(checker, name)
        ]
        self.values = {name: final_values(checker, name) for name in names}
        self.starts = {name: final_log(checker, name)[0].log_start_offset for name in names}
        self.places: dict[tuple[TopicPartition, bytes], int] = {}
        self.twice: dict[tuple[TopicPartition, bytes], int] = {}
        self._find_places()

    def _find_places(self) -> None:
        for name, values in self.values.items():
            for offset, value in values.items():
                if (name, value) in self.places:
                    self.twice[name, value] = self.places[name, value]
                self.places[name, value] = offset
