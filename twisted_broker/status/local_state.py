"""One broker's own state, for the page: log directories, its own troubles, the groups that
it coordinates. Ring 0.

Owns `Directory` and `GroupRow`, and how they are found.

1. It only reads. A walk over all replicas, or over the offsets of a group, pauses.
2. The lag of a group is up to the high watermark as this broker knows it, of the partitions that
   have a replica here; how many these are is said. It is never below 0. Of a share group it is
   what Kafka's tool counts, records behind the start offset that are not finished, where this
   broker also stores the state.

Source: our own. Not here: the cluster (`cluster_state.py`), looking at disks
(`log/free_space.py`), HTML (`overview_page.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.reasons import duration
from twisted_broker.status.cluster_state import MOST_TROUBLES, Trouble, plural, sorted_part

_REPLICAS_PER_PIECE = 500
_OFFSETS_PER_PIECE = 200


class Directory(NamedTuple):
    """A log directory. `free`, `total`: bytes, -1 where nobody looked yet; `error`: why it is
    offline, empty while it is not.
    """

    path: str
    error: str
    logs: int
    size: int
    total: int
    free: int


class GroupRow(NamedTuple):
    """A group that this broker coordinates. `lag` over `known` of its `offsets` partitions."""

    name: str
    state: str
    members: int
    protocol: str
    lag: int
    known: int
    offsets: int


def sizes_by_directory(log_manager: Any, found: dict[str, list[int]]) -> Iterator[None]:
    """`found`: [logs, bytes] by the path of the directory."""
    for number, log in enumerate(log_manager, 1):
        own = found.setdefault(log.directory.rpartition("/")[0], [0, 0])
        own[0] += 1
        if log.failed is None:
            own[1] += log.size_in_bytes
        if number % (_REPLICAS_PER_PIECE // 4) == 0:
            yield


def directories(log_manager: Any, sizes: dict[str, list[int]]) -> list[Directory]:
    """All log directories, the one of the metadata included."""
    rows = []
    for each in log_manager.directories.claimed():
        total, free = log_manager.free_space.found.get(each.path, (-1, -1))
        logs, size = sizes.get(each.path, (0, 0))
        error = "" if each.failed is None else str(each.failed) or "it failed"
        rows.append(Directory(each.path, error, logs, size, total, free))
    return rows


def troubles_of_directories(found: list[Directory], least_free: int) -> Iterator[Trouble]:
    """Offline ones, then those whose disk is nearly full: fewer than `least_free` bytes."""
    for each in found:
        if each.error:
            yield Trouble(
                f"log directory {each.path} is offline until a restart: {each.error}; "
                f"{plural(each.logs, 'replica')} in it"
            )
    for each in found:
        if not each.error and 0 <= each.free < least_free:
            yield Trouble(
                f"the disk of log directory {each.path} is nearly full: "
                f"{byte_text(each.free)} of {byte_text(each.total)} are free"
            )


def troubles_of_cleaner(uncleanable: Mapping[TopicPartition, str]) -> Iterator[Trouble]:
    """Compacted logs that are left alone."""
    for (topic, number), reason in islice(sorted(uncleanable.items()), MOST_TROUBLES):
        yield Trouble(f"{topic}-{number} is not compacted: {reason}", False, topic, number)
    more = len(uncleanable) - MOST_TROUBLES
    if more > 0:
        yield Trouble(f"and {more:,} more logs that are not compacted", False, stands_for=more)


def troubles_of_controller(observer: Any) -> Iterator[Trouble]:
    """Of a broker that lost its controller."""
    if observer is not None and getattr(observer, "unreachable", False):
        host, port = observer.address
        yield Trouble(
            f"the controller at {host}:{port} is not reached: records are served, nothing can be "
            f"changed; the cluster on this page is as of metadata offset "
            f"{observer.image.offset}"
        )


def troubles_of_quorum(controller: Any) -> Iterator[Trouble]:
    """Of a controller that knows of no leader of the metadata log."""
    why = "" if controller is None else controller.log.why_no_leader
    if why:
        yield Trouble(f"no controller is active: {why}")


def troubles_of_replicas(replicas: Any, now: Any, found: list[Trouble]) -> Iterator[None]:
    """Replicas of this broker that are not served or not fetched any more."""
    count = 0
    for number, partition in enumerate(list(replicas.partitions.values()), 1):
        failure = partition.history.failure
        if partition.offline or failure is not None:
            count += 1
            if len(found) < MOST_TROUBLES:
                found.append(_of_replica(partition, failure, now))
        if number % _REPLICAS_PER_PIECE == 0:
            yield
    if count > len(found):
        more = count - len(found)
        found.append(Trouble(f"and {more:,} more replicas here that failed", stands_for=more))


def _of_replica(partition: Any, failure: Any, now: Any) -> Trouble:
    topic, number = partition.topic_partition
    if partition.offline:
        why = partition.offline_because or "its log directory, or the replica itself, failed"
        text = f"{topic}-{number}: the replica here cannot be used: {why}"
    else:
        text = (
            f"{topic}-{number} is not fetched any more, since "
            f"{duration(now.ago(failure.at_ms))}: {failure.reason}"
        )
    return Trouble(text, True, topic, number)


_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


class Groups:
    """The groups that this broker coordinates: one page of those whose name has `wanted` in it.
    `share_state`: the share coordinator, where there is one.
    """

    def __init__(self, wanted: str, first: int, rows: int, share_state: Any = None) -> None:
        self._share_state = share_state
        self.rows: list[GroupRow] = []
        self.total = self.matching = self.rebalancing = 0
        self._wanted, self._first, self._most = wanted.lower(), first, rows

    def gather(self, coordinator: Any, replicas: Any) -> Iterator[None]:
        """In pieces."""
        names: list[str] = []
        shards = coordinator.runtime.shards
        for shard in list(shards.values()):
            if shard.state.name == "ACTIVE":
                yield from self._gather_names(shard.groups, names)
        self.matching = len(names)
        ordered: list[str] = []
        yield from sorted_part(names, self._first, self._most, ordered)
        for name in ordered:
            found = (shard.groups.get(name) for shard in list(shards.values()))
            entry = next((each for each in found if each is not None), None)
            if entry is not None:  # else it went meanwhile
                row = yield from _group_row(name, entry, replicas, self._share_state)
                self.rows.append(row)

    def _gather_names(self, groups: Any, names: list[str]) -> Iterator[None]:
        number = 0
        for part in groups.parts():
            for name in part:
                entry = groups.get(name)
                if entry is None:
                    continue
                self.total += 1
                self.rebalancing += entry.group.state.value in _REBALANCING
                if self._wanted in name.lower():
                    names.append(name)
                number += 1
                if number % _REPLICAS_PER_PIECE == 0:
                    yield


# As the page names them.
_NEWER_PROTOCOLS = {
    "consumer": "consumer (KIP-848)",
    "share": "share (KIP-932)",
    "streams": "streams (KIP-1071)",
}


def _group_row(
    name: str, entry: Any, replicas: Any, share_state: Any
) -> Generator[None, None, GroupRow]:
    group, lag, known, offsets = entry.group, 0, 0, 0
    for offsets, (topic, index, done) in enumerate(_offsets(entry, share_state), 1):
        partition = replicas.partitions.get(TopicPartition(topic, index))
        if done is not None and partition is not None and partition.log is not None:
            known += 1
            lag += max(0, partition.log.high_watermark - done)
        if offsets % _OFFSETS_PER_PIECE == 0:
            yield
    protocol = _NEWER_PROTOCOLS.get(group.group_type)
    if protocol is None:
        protocol = group.protocol_name or group.protocol_type or ""
    state, members = group.state.value, len(group.members)
    return GroupRow(name, state, members, protocol, lag, known, offsets)


def _offsets(entry: Any, share_state: Any) -> Iterator[tuple[str, int, int | None]]:
    """Topic and number of what the group reads, and how far it is; None: not known here."""
    if entry.group.group_type != "share":
        for (topic, index), found in entry.offsets.items():
            yield topic, index, found.offset
        return
    for topic_id, (name, numbers) in list(entry.group.known_states.initialized.items()):
        for index in numbers:
            key = SharePartitionKey(entry.group.group_id, topic_id, index)
            found = None if share_state is None else share_state.known(key)
            if found is None or min(found.start_offset, found.delivery_complete_count) < 0:
                yield name, index, None
            else:
                yield name, index, found.start_offset + found.delivery_complete_count


def byte_text(count: int) -> str:
    """`1.5 GiB`; a dash where it is not known."""
    if count < 0:
        return "–"
    size = float(count)
    for unit in islice(("B", "KiB", "MiB", "GiB", "TiB"), 5):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count:,} B" if unit == "B" else f"{size:,.1f} {unit}"
