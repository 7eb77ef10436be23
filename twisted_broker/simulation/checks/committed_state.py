"""What the controller has committed, and what leaders have exposed: the truth that brokers and
clients are held to.

Owns `CommittedState` and `Violation`. A partition is named by its topic's id and its number, for a
topic may be deleted and created again.

1. The controller's committed image is the truth about leaders and ISRs. It only grows, and so do
   all epochs in it; a process that starts on what was committed finds the same. No broker applies
   more than that, or anything under another epoch than the controller's.
2. What was committed of a partition is its `Line`; an unclean election is noted here, and only then
   may a line lose something.
3. `touched` are the partitions of which something changed since they were last held to StrongIsr.

Source: RL 9; RELIABILITY 2.2 (TypeOk, LeaderInIsr). Not here: logs
(`simulation/checks/replicas.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.checks.replica_contents import Line
from twisted_broker.topic_names import OFFSETS_TOPIC

Key = tuple[bytes, int]


class Violation(Exception):
    """An invariant does not hold."""


class CommittedState:
    """`image`: what is committed now, None before anything is.

    `note` is called for unclean elections; `committed(before, image)` is called with each image.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.image: Any = None
        self.names: dict[Key, TopicPartition] = {}
        self.keys: dict[TopicPartition, Key] = {}
        self.lines: dict[Key, Line] = {}
        self.touched: set[Key] = set()
        self.unclean_elections = self.unclean_in_core = 0
        self.core: frozenset[int] = frozenset()
        """brokers that stay healthy: a partition with a replica there needs no unclean election"""
        self.deletions: dict[TopicPartition, int] = {}
        """the highest offset that DeleteRecords was called with, before it was"""
        self._retained: set[str] = set()
        self._note = note
        self.committed: Callable[[Any, Any], None] = lambda before, image: None
        self._looked_at: Any = None
        self._decider: Any = None
        self._decided: dict[int, Any] = {}
        self._broker_epochs: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int]] = {}
        """epoch of the controller -> the first and the last end that was committed under it"""
        self._applied: dict[str, Any] = {}

    # names

    def key_of(self, partition: Partition) -> Key:
        key = (bytes(partition.topic_id), partition.topic_partition.partition)
        self.names.setdefault(key, partition.topic_partition)
        self.keys.setdefault(partition.topic_partition, key)
        return key

    def line(self, key: Key) -> Line:
        found = self.lines.get(key)
        if found is None:
            found = self.lines[key] = Line()
        return found

    def line_of(self, name: TopicPartition) -> Line:
        return self.line(self.keys[name]) if name in self.keys else Line()

    def is_complete(self, *topics: str) -> bool:
        """Whether no partition of these has lost anything, or may lose it yet."""
        return all(
            self.line(key).is_complete for key, name in self.names.items() if name.topic in topics
        )

    def registration(self, key: Key) -> Any:
        """A partition as the image has it; None when it is not there."""
        topic = None if self.image is None else self.image.topics_by_id.get(key[0])
        return None if topic is None else topic.partitions.get(key[1])

    def coordinator_of(self, group: str) -> tuple[str, int] | None:
        """Where the group's coordinator is now, and its epoch."""
        image = self.image
        topic = None if image is None else image.topics_by_name.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        partition = topic.partitions[partition_for(group, len(topic.partitions))]
        leader = image.brokers.get(partition.leader)
        if leader is None:
            return None
        return next(iter(leader.listeners.values())).host, partition.leader_epoch

    def may_delete_upto(self, key: Key) -> int:
        """Where the log start may be: anywhere once the topic had retention by size or time."""
        name = self.names[key]
        if name.topic in self._retained:
            return 1 << 62
        return self.deletions.get(name, 0)

    def without_candidates(self) -> list[str]:
        """Topics with a partition that has no leader and nobody to elect: a changed minimum ISR
        made the controller forget (KIP-966).
        """
        topics = () if self.image is None else self.image.topics_by_id.values()
        return sorted(
            topic.name
            for topic in topics
            if any(_is_without_candidates(each) for each in topic.partitions.values())
        )

    # changes

    def decided(self, controller: object, images: Iterable[Any]) -> None:
        """What a controller decided and has not committed: one sync may commit several decisions,
        and what lay between, an unclean election perhaps, is seen only here.
        """
        if controller is not self._decider:
            self._decider, self._decided = controller, {}
        for image in images:
            self._decided[image.offset] = image

    def look(self, image: Any) -> None:
        """What the controller has committed now; costs nothing while that is the same image.

        Raises `Violation`.
        """
        if image is self._looked_at:
            return
        for offset in sorted(self._decided):
            if offset < image.offset and (self.image is None or offset > self.image.offset):
                self._look(self._decided[offset])
        self._decided = {o: each for o, each in self._decided.items() if o > image.offset}
        self._look(image)

    def _look(self, image: Any) -> None:
        before, self._looked_at = self.image, image
        if image.offset < 0:
            return
        if before is not None and image.offset < before.offset:
            raise Violation(
                f"the controller lost metadata: {before.offset} was committed, now it ends at "
                f"{image.offset}"
            )
        if before is not None and image.offset == before.offset and image != before:
            raise Violation(f"the controller's metadata up to {image.offset} is another one")
        self.image = image
        first, _ = self._ends.get(image.epoch, (image.offset, 0))
        self._ends[image.epoch] = first, image.offset
        self.committed(before, image)
        self._check_brokers(image)
        if before is None or before.configs is not image.configs:
            self._retained |= {
                name
                for (_, name), settings in image.configs.items()
                if "retention.bytes" in settings or "retention.ms" in settings
            }
        for topic_id, topic in image.topics_by_id.items():
            old = None if before is None else before.topics_by_id.get(topic_id)
            if old is not topic and old != topic:
                self._check_topic(topic_id, old, topic)

    @property
    def _committed_upto(self) -> int:
        return -1 if self.image is None else self.image.offset

    def applied(self, who: str, image: Any) -> None:
        """Raises `Violation` when a broker's metadata is of no cluster's: more than was committed,
        or of a log that has another epoch there.
        """
        if self._applied.get(who) is image:
            return
        known = self._committed_upto
        if image.offset > known:
            raise Violation(f"{who} applied {image.offset}, only {known} was committed")
        for epoch, (first, last) in self._ends.items():
            if (epoch < image.epoch and last >= image.offset) or (
                epoch > image.epoch and first <= image.offset
            ):
                raise Violation(
                    f"{who} applied {image.offset} of epoch {image.epoch}, what was committed "
                    f"there is of epoch {epoch}"
                )
        self._applied[who] = image

    def _check_brokers(self, image: Any) -> None:
        for broker in image.brokers.values():
            if broker.epoch < self._broker_epochs.get(broker.id, -1):
                raise Violation(
                    f"broker {broker.id} has epoch {broker.epoch}, it had "
                    f"{self._broker_epochs[broker.id]}"
                )
            self._broker_epochs[broker.id] = broker.epoch

    def _check_topic(self, topic_id: bytes, old: Any, topic: Any) -> None:
        for number, partition in topic.partitions.items():
            known = None if old is None else old.partitions.get(number)
            if known != partition:
                self._check_partition(
                    (topic_id, number), TopicPartition(topic.name, number), known, partition
                )

    def _check_partition(self, key: Key, name: TopicPartition, old: Any, new: Any) -> None:
        self.names[key] = name
        self.keys[name] = key
        self.keys[TopicPartition(f"{name.topic}@{key[0].hex()}", name.partition)] = key
        self.touched.add(key)
        line = self.line(key)
        line.was_in_core = line.was_in_core or bool(self.core.intersection(new.isr))
        where = f"{name} {new}"
        if new.leader >= 0 and new.leader not in new.isr:
            raise Violation(f"{where}: the leader is not in the ISR")
        if not set(new.isr) <= set(new.replicas) or set(new.isr) & set(new.elr):
            raise Violation(f"{where}: ISR and eligible replicas do not fit the assignment")
        if old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.partition_epoch <= old.partition_epoch:
            raise Violation(f"{where}: epochs did not grow, before: {old}")
        elected = new.leader >= 0 and (
            new.leader != old.leader or new.leader_epoch != old.leader_epoch
        )
        if elected and new.leader not in (*old.isr, *old.elr) and not _joined(old, new):
            what = f"{name}: {old} -> {new}"
            self._elected_uncleanly(key, new.leader_epoch, old.replicas, what)

    def _elected_uncleanly(
        self, key: Key, leader_epoch: int, replicas: Iterable[int], what: str
    ) -> None:
        line = self.line(key)
        line.unclean_epoch, line.waits_for_leader = leader_epoch, True
        self.unclean_elections += 1
        self.unclean_in_core += line.was_in_core and bool(self.core.intersection(replicas))
        self._note(f"unclean election of {what}")


def _joined(old: Any, new: Any) -> bool:
    """Whether one record took the leader into the ISR and ended a reassignment: a leader outside it
    that is elected is alone, and was there before. One that was being added may be alone, too, when
    it replaces all of the ISR: the record would say that it recovers, were it elected uncleanly.
    """
    ends = (old.adding or old.removing) and not (new.adding or new.removing)
    is_joining = len(new.isr) > 1 or new.leader in old.adding
    return bool(ends) and is_joining and not new.leader_recovery_state


def _is_without_candidates(registration: Any) -> bool:
    return registration.leader < 0 and not (
        registration.isr or registration.elr or registration.last_known_elr
    )
