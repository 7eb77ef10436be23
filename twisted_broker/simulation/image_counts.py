"""Counts of the changes that the controller committed: elections, ISRs, membership, topics,
directories.

Owns `ImageCounts`, which is given each image and the one before it. Not here: judging them
(`simulation/checks/committed_state.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.image.entries import LOST, UNASSIGNED
from twisted_broker.simulation.reach import Reach

_TOPIC = 2


class ImageCounts:
    """Counts into `reach`."""

    def __init__(self, reach: Reach) -> None:
        self._count = reach.count
        self._names: set[str] = set()

    def committed(self, before: Any, image: Any) -> None:
        """`before` is None for the first one."""
        if before is None:
            return
        if before.brokers is not image.brokers:
            self._brokers(before, image)
        if before.configs is not image.configs:
            self._settings(before, image)
        if before.topics_by_id is not image.topics_by_id:
            self._topics(before, image)

    def _brokers(self, before: Any, image: Any) -> None:
        for broker in image.brokers.values():
            old = before.brokers.get(broker.id)
            if old is None or old is broker:
                continue
            if broker.epoch != old.epoch:
                self._count("broker registered again")
            elif broker.fenced and not old.fenced and not old.in_controlled_shutdown:
                self._count("session expired")
            if broker.in_controlled_shutdown and not old.in_controlled_shutdown:
                self._count("controlled shutdown")

    def _settings(self, before: Any, image: Any) -> None:
        for key, values in image.configs.items():
            topic = image.topics_by_name.get(key[1]) if key[0] == _TOPIC else None
            if topic is not None and topic.id in before.topics_by_id:
                self._count("setting changed", int(before.configs.get(key, {}) != values))

    def _topics(self, before: Any, image: Any) -> None:
        for topic_id, topic in before.topics_by_id.items():
            if topic_id not in image.topics_by_id:
                self._count("topic deleted")
                self._names.add(topic.name)
        for topic_id, topic in image.topics_by_id.items():
            old = before.topics_by_id.get(topic_id)
            if old is None:
                self._count("topic made again", int(topic.name in self._names))
            elif old is not topic:
                self._partitions(old, topic, image)

    def _partitions(self, old: Any, topic: Any, image: Any) -> None:
        for number, partition in topic.partitions.items():
            known = old.partitions.get(number)
            if known is not None and known != partition:
                self._partition(known, partition, image)

    def _partition(self, old: Any, new: Any, image: Any) -> None:
        self._count("ISR shrink", len(set(old.isr) - set(new.isr)))
        self._count("ISR expansion", len(set(new.isr) - set(old.isr) - {new.leader}))
        self._leader(old, new)
        if new.adding and not old.adding:
            self._count("reassignment begun")
        if old.adding and not new.adding and set(old.adding) <= set(new.isr):
            self._count("reassignment ended")
        for broker in new.replicas:
            was, now = old.directory_of(broker), new.directory_of(broker)
            if was == UNASSIGNED and now not in (UNASSIGNED, LOST):
                self._count("directory assigned")
        if broker_lost_directory(old, new, image):
            self._count("replica moved from a failed directory")

    def _leader(self, old: Any, new: Any) -> None:
        if new.leader < 0 <= old.leader:
            self._count("no leader")
        elif new.leader >= 0 and new.leader != old.leader:
            self._count("leader change")
            if new.leader in old.elr:
                self._count("election from the ELR")


def broker_lost_directory(old: Any, new: Any, image: Any) -> bool:
    """Whether a leader or ISR member went because its directory is offline, its broker being
    alive.
    """
    return any(
        image.brokers[broker].may_be_in_isr
        and not image.brokers[broker].has_online_directory(new.directory_of(broker))
        for broker in set(old.isr) - set(new.isr)
        if broker in image.brokers and broker in new.replicas
    )
