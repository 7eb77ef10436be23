"""The state of a cluster, and its changes since somebody looked, for the page that follows
it. Ring 0.

Owns `LiveState`: a row for each partition with what each replica has, and the sections beside
(brokers, groups, transactional ids, requests that wait).

1. Each replica is as its own broker has it: brokers that disagree are seen.
2. A look reads some numbers of each replica, and makes rows only of what changed. It pauses.
3. Each content has the number of the look that found it, so `since` gives what somebody lacks who
   was there at that number. Who was at none of this process, or at a later one, gets all.
4. Bounded: `MOST_PARTITIONS` rows, and `MOST` of each other kind; how many more there are is said.

Source: our own. Not here: the page (`live/page.html`), HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from twisted_broker.coordinator.consumer.embedded import read_assignment
from twisted_broker.coordinator.subscription import MalformedSubscription
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.waiting_requests import waiting_requests

MOST_PARTITIONS = 2000
MOST = 200
_MOST_OFFSETS = 200
_MOST_EPOCHS = 8
_PER_PIECE = 250
_PURGATORIES = ("produce_purgatory", "delete_records_purgatory", "fetch_purgatory")
_ENDED = ("Empty", "CompleteCommit", "CompleteAbort")


class _Row:
    """Of a partition."""

    __slots__ = ("copies", "found_at", "registration")

    def __init__(self) -> None:
        self.registration: Any = None
        self.copies: dict[int, dict[str, Any]] = {}
        """by broker"""
        self.found_at = 0


class LiveState:
    """`of`: the name of the process; numbers of another one say nothing here."""

    def __init__(self, of: str, most_partitions: int = MOST_PARTITIONS) -> None:
        self.of, self._most = of, most_partitions
        self.version = 0
        self._rows: dict[TopicPartition, _Row] = {}
        self._gone: dict[TopicPartition, int] = {}
        self._forgotten = 0
        self._seen: dict[int, dict[TopicPartition, tuple[Any, ...]]] = {}
        self._image: MetadataImage | None = None
        self._left_out = 0
        self._sections: dict[str, tuple[Any, int]] = {}
        self._group_states: dict[str, tuple[str, int]] = {}
        self._is_looking = False

    def look(self, nodes: Sequence[Any], more: Mapping[str, Any], wall_ms: int) -> Iterator[None]:
        """`nodes`: `NodeParts` of brokers; `more`: sections that only the caller knows. Nothing
        where another look is not over.
        """
        if self._is_looking:
            return
        self._is_looking = True
        try:
            yield from self._look(nodes, more, wall_ms)
        finally:
            self._is_looking = False

    def _look(self, nodes: Sequence[Any], more: Mapping[str, Any], wall_ms: int) -> Iterator[None]:
        version = self.version + 1
        sources = [each.controller if each.metadata is None else each.metadata for each in nodes]
        images = [each.image for each in sources if each is not None]
        image = max(images, key=lambda each: each.offset, default=None)
        if image is not None and image is not self._image:
            self._image = image
            yield from self._registered(image, version)
        for gone in self._seen.keys() - {each.node_id for each in nodes}:
            self._lost(gone, set(self._seen.pop(gone)), version)
        for node in nodes:
            yield from self._held(node, version)
        groups: list[dict[str, Any]] = []
        for node in nodes:
            yield from self._groups(node, wall_ms, groups)
        sections = {
            "brokers": _brokers(image),
            "groups": groups,
            "transactions": [row for node in nodes for row in _transactions(node)][:MOST],
            "waiting": [row for node in nodes for row in islice(_waiting(node, wall_ms), MOST)],
            "left_out": self._left_out,
            **more,
        }
        for name, content in sections.items():
            known = self._sections.get(name)
            if known is None or known[0] != content:
                self._sections[name] = (content, version)
        self.version = version

    def _registered(self, image: MetadataImage, version: int) -> Iterator[None]:
        """Rows of the metadata."""
        names = [
            TopicPartition(topic.name, number)
            for topic in image.topics_by_name.values()
            for number in topic.partitions
        ]
        self._left_out = max(0, len(names) - self._most)
        if self._left_out:
            names = sorted(names, key=lambda each: (each.topic[:2] == "__", each))[: self._most]
        for number, name in enumerate(names, 1):
            known = image.topics_by_name[name.topic].partitions[name.partition]
            row = self._rows.get(name)
            if row is None:
                row = self._rows[name] = _Row()
                self._gone.pop(name, None)
            if row.registration is not known:
                row.registration, row.found_at = known, version
            if number % _PER_PIECE == 0:
                yield
        for name in self._rows.keys() - set(names):
            del self._rows[name]
            self._gone[name] = version
            for seen in self._seen.values():
                seen.pop(name, None)
        while len(self._gone) > self._most:  # who was there before gets all
            self._forgotten = max(self._forgotten, self._gone.pop(next(iter(self._gone))))

    def _held(self, node: Any, version: int) -> Iterator[None]:
        if node.replica_manager is None:
            return
        held, rows = node.replica_manager.partitions, self._rows
        seen = self._seen.setdefault(node.node_id, {})
        if len(held) != len(seen) or held.keys() != seen.keys():
            self._lost(node.node_id, seen.keys() - held.keys(), version)
        for number, (name, own) in enumerate(list(held.items()), 1):
            log = own.log
            if number % _PER_PIECE == 0:
                yield
            if log is None:
                continue
            marks = log.watermarks
            found = (
                own.leader_epoch,
                log.segments.log_end_offset,
                marks.high_watermark,
                marks.log_start_offset,
                own.is_leader,
            )
            if seen.get(name) == found or name not in rows:
                continue
            seen[name], row = found, rows[name]
            row.found_at = version
            row.copies[node.node_id] = {
                "broker": node.node_id,
                "leads": own.is_leader,
                "epoch": own.leader_epoch,
                "start": log.log_start_offset,
                "high_watermark": log.high_watermark,
                "stable": log.last_stable_offset,
                "end": log.log_end_offset,
                "epochs": _epochs(log.leader_epochs),
            }

    def _lost(self, node: int, names: set[TopicPartition], version: int) -> None:
        """Replicas that this broker does not have, or that nobody sees any more."""
        for name in names:
            self._seen.get(node, {}).pop(name, None)
            row = self._rows.get(name)
            if row is not None and row.copies.pop(node, None) is not None:
                row.found_at = version

    def _groups(self, node: Any, wall_ms: int, found: list[dict[str, Any]]) -> Iterator[None]:
        if node.groups is None:
            return
        entries = (
            entry
            for shard in node.groups.runtime.shards.values()
            for entry in shard.groups.each_value()
        )
        for entry in list(islice(entries, MOST - len(found))):
            group = entry.group
            name, state = group.group_id, group.state.value
            known = self._group_states.get(name)
            if known is None or known[0] != state:
                if len(self._group_states) >= 10 * MOST:
                    self._group_states.clear()
                self._group_states[name] = known = (state, wall_ms)
            committed = islice(entry.offsets.items(), _MOST_OFFSETS)
            row = {
                "name": name,
                "state": state,
                "since_ms": known[1],
                "members": sorted(each.client_id for each in group.members.values()),
                "assigned": sorted(
                    [each.client_id, self._assigned(each)] for each in group.members.values()
                ),
                "lag": sum(self._behind(where, at.offset) for where, at in committed),
                "coordinator": node.node_id,
            }
            found.append(row)
            yield

    def _assigned(self, member: Any) -> list[str]:
        """Partitions of a member, sorted; of a Streams group's, which has tasks, none."""
        image = self._image
        if image is None:
            return []
        found: Iterable[Any] = getattr(member, "assigned", ())
        content = getattr(member, "assignment", None)
        if content is not None:
            try:
                found = read_assignment(bytes(content), image)
            except MalformedSubscription:  # of a group that is none of consumers
                return []
        elif not isinstance(found, frozenset | Mapping):
            return []
        topics = image.topics_by_id
        known = sorted((topics[topic].name, number) for topic, number in found if topic in topics)
        return [f"{topic}-{number}" for topic, number in known[:MOST]]

    def _behind(self, where: tuple[str, int], offset: int) -> int:
        row = self._rows.get(TopicPartition(*where))
        ends = [each["high_watermark"] for each in row.copies.values()] if row is not None else []
        return max(0, max(ends) - offset) if ends else 0

    def since(self, version: int, of: str, wall_ms: int) -> dict[str, Any]:
        """What somebody lacks who was given that version of this process; as JSON has it."""
        whole = of != self.of or not self._forgotten <= version <= self.version or version <= 0
        at = 0 if whole else version
        found: dict[str, Any] = {
            "of": self.of,
            "version": self.version,
            "whole": whole,
            "now_ms": wall_ms,
            "partitions": [
                _described(name, row) for name, row in self._rows.items() if row.found_at > at
            ],
            "gone": [] if whole else [[*name] for name, when in self._gone.items() if when > at],
        }
        for name, (content, when) in self._sections.items():
            if when > at:
                found[name] = content
        return found


def has_news(found: Mapping[str, Any]) -> bool:
    """Whether `since` gave more than the time."""
    known = {"of", "version", "whole", "now_ms", "partitions", "gone"}
    return bool(found["whole"] or found["partitions"] or found["gone"] or found.keys() - known)


def _epochs(known: Any) -> list[list[int]]:
    """The last ones, and where they begin."""
    starts = known.start_offsets[-_MOST_EPOCHS:]
    return [list(each) for each in zip(known.epochs[-_MOST_EPOCHS:], starts, strict=True)]


def _described(name: TopicPartition, row: _Row) -> dict[str, Any]:
    known = row.registration
    return {
        "topic": name.topic,
        "partition": name.partition,
        "leader": known.leader,
        "epoch": known.leader_epoch,
        "isr": sorted(known.isr),
        "assigned": known.replicas,
        "replicas": [row.copies[node] for node in sorted(row.copies)],
    }


def _brokers(image: MetadataImage | None) -> list[dict[str, Any]]:
    """As the metadata has them."""
    return [
        {
            "node": node,
            "state": "fenced"
            if each.fenced
            else "shutting down"
            if each.in_controlled_shutdown
            else "running",
        }
        for node, each in sorted(() if image is None else image.brokers.items())[:MOST]
    ]


def _transactions(node: Any) -> Iterator[dict[str, Any]]:
    """The open ones first. `since_ms`: of the transaction, else of its end."""
    if node.transactions is None:
        return
    known = (
        each
        for shard in node.transactions.states.shards.values()
        for each in shard.transactions.each_value()
    )
    for each in sorted(islice(known, 10 * MOST), key=lambda one: one.state.text in _ENDED):
        is_over = each.state.text in _ENDED
        yield {
            "id": each.transactional_id,
            "state": each.state.text,
            "since_ms": each.last_update_ms if is_over else each.start_ms,
            "producer": each.producer_id,
            "epoch": each.producer_epoch,
            "partitions": len(each.partitions),
            "coordinator": node.node_id,
        }


def _waiting(node: Any, wall_ms: int) -> Iterator[dict[str, Any]]:
    """The oldest at each partition, each once, and what it waits for. Reads come again and again:
    when the time of one is up would be news at each look. Those of share groups only by number.
    """
    manager = node.replica_manager
    if manager is None:
        return
    for purgatory in (getattr(manager, each) for each in _PURGATORIES):
        are_reads, seen = purgatory is manager.fetch_purgatory, set[int]()
        for key, left_ms in islice(purgatory.watched(), MOST):
            partition = manager.partitions.get(key)
            if partition is None:  # a session of reads, or a partition that is gone
                continue
            oldest = purgatory.watching(key)[:1]
            # To look at one walks over all its partitions.
            if {id(operation) for operation, _ in oldest} <= seen:
                continue
            seen.update(id(operation) for operation, _ in oldest)
            for each in waiting_requests(partition, oldest):
                yield {
                    "broker": node.node_id,
                    "api": purgatory.name,
                    "at": str(key),
                    "why": each.why.rpartition("; ")[0],
                    "until_ms": None if are_reads else (wall_ms + left_ms) // 100 * 100,
                }
    reads = manager.share_fetch_purgatory.waiting
    if reads:
        yield {
            "broker": node.node_id,
            "api": manager.share_fetch_purgatory.name,
            "at": f"{reads} reads",
            "why": "records to acquire",
            "until_ms": None,
        }
