"""The state of a cluster after it healed: all replicas in the ISR and equal, nothing pending.

Owns `what_is_missing` for that, `final_log`, `final_values` and `is_there`. Source: RL 9. Not here:
what holds at every step (`simulation/checks/cluster.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.committed_state import Key, Violation
from twisted_broker.simulation.checks.replica_contents import Mirror
from twisted_broker.simulation.node import SimNode
from twisted_broker.wire.records import CorruptRecordError, iterate_batches

_RECORD_BYTES = 1 << 20


def what_is_missing(checker: ClusterChecker) -> str:
    """Empty when every replica is back in its ISR and all logs are equal and committed; else the
    first that is not.
    """
    image = checker.truth.image
    if image is None:
        return "no metadata"
    for topic_id in sorted(image.topics_by_id):
        for number, registration in image.topics_by_id[topic_id].partitions.items():
            missing = _missing(checker, (topic_id, number), registration)
            if missing:
                return missing
    return _not_deleted(checker)


def _not_deleted(checker: ClusterChecker) -> str:
    for node in checker.cluster.nodes.values():
        manager = None if node.broker is None else node.broker.parts.replica_manager
        for name, partition in {} if manager is None else manager.partitions.items():
            if checker.truth.registration(checker.truth.key_of(partition)) is None:
                return f"{node.name} still holds {name}, which was deleted"
    return ""


def _missing(checker: ClusterChecker, key: Key, registration: Any) -> str:
    name = checker.truth.names[key]
    if registration.adding or registration.removing:
        return f"{name} is being reassigned: {registration}"
    if registration.leader < 0 or set(registration.isr) != set(registration.replicas):
        return f"{name}: {registration}"
    found: list[Mirror] = []
    ends: list[int] = []
    line = checker.truth.line(key)
    for replica in registration.replicas:
        seen = checker.members.seen[f"n{replica}"].get(name)
        if seen is None:
            return f"{name}: n{replica} does not hold it"
        end: int = seen.log.log_end_offset
        if not line.was_cut_where_cleaned(seen.mirror.end, end):
            end = seen.mirror.end
        if replica == registration.leader and (not seen.leads or seen.high_watermark != end):
            return (
                f"{name}: n{replica} leads {seen.leads}, high watermark "
                f"{seen.high_watermark}, log end {end}"
            )
        found.append(seen.mirror)
        ends.append(end)
    row = list(registration.replicas).index(registration.leader)
    held_upto, leader_end = found[row].end, ends[row]
    # A follower at whose end its leader has no batch counts as one with all (`Line.end_to_hold`).
    ends = [
        leader_end if held_upto <= each and line.was_cut_where_cleaned(each, leader_end) else each
        for each in ends
    ]
    is_equal = all(each.agrees(found[0], ends[0], line.floor) for each in found)
    if len(set(ends)) > 1 or not is_equal:
        return f"{name}: the replicas differ, they end at {ends}"
    return ""


def final_log(checker: ClusterChecker, name: TopicPartition) -> tuple[Log, SimNode]:
    """The leader's log, and its machine."""
    key = checker.truth.keys[name]
    registration = checker.truth.registration(key)
    node = checker.cluster.nodes[f"n{registration.leader}"]
    return checker.members.seen[node.name][checker.truth.names[key]].log, node


def is_there(checker: ClusterChecker, name: TopicPartition) -> bool:
    """Whether its topic was not deleted."""
    key = checker.truth.keys.get(name)
    return key is not None and checker.truth.registration(key) is not None


def final_values(checker: ClusterChecker, name: TopicPartition) -> dict[int, bytes]:
    """Offset -> value of the leader's log. `Violation` where that is damaged."""
    log, node = final_log(checker, name)
    values: dict[int, bytes] = {}
    for segment in log.segments:
        data = bytes(node.disk.nodes[segment.log.path].data[: segment.size])
        try:
            for batch in iterate_batches(data, check_crc=True):
                values |= {
                    record.offset: bytes(record.value or b"")
                    for record in batch.records(_RECORD_BYTES)
                }
        except CorruptRecordError as error:
            raise Violation(f"{name}: its leader {node.name} holds damage: {error}") from error
    return values
