"""Changes of the metadata as events for an operator: (kind, parts) of lines for the log.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

1. One line for each topic, broker and resource that changed; elections and reassignments of several
   partitions in one change are one line.
2. What costs is bounded: of a change of very many partitions the first `_MOST_LOOKED_AT` are
   looked at.
3. Of unclean elections those of the last known leader are counted by themselves, too.
4. A change of an ISR has a line here only if a change of a broker comes with it: every other one
   is logged by the partition's leader.

Source: Kafka's `ReplicationControlManager`, `ClusterControlManager`, `ConfigurationControlManager`
(their info lines). Not here: the form of lines (`event_lines.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from twisted_broker.config import is_secret
from twisted_broker.image.entries import (
    NO_LEADER,
    RECOVERING,
    BrokerRegistration,
    PartitionRegistration,
)
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataDelta,
    PartitionDelta,
)
from twisted_broker.wire.primitives import uuid_text

Event = tuple[str, dict[str, object]]
ELECTIONS = frozenset({"leader elected", "leaders elected", "partition has no leader"})
"""Kinds that are about changes of leaders; `partitions` counts them, one where it is missing."""
_MOST_LOOKED_AT = 5_000
_RESOURCES = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}


def events(delta: MetadataDelta) -> Iterator[Event]:
    """Of one change, in the order in which a reader wants them."""
    for node_id in sorted(delta.brokers):
        yield from _broker(delta.before.brokers.get(node_id), delta.after.brokers.get(node_id))
    yield from _topics(delta)
    changed = [
        change
        for change in islice(delta.partitions.values(), _MOST_LOOKED_AT)
        if change.before is not None and change.after is not None
    ]
    if delta.brokers:
        yield from _shrunk(changed)
    yield from _elections(changed)
    yield from _reassignments(changed)
    yield from _configs(delta)
    # A new cluster begins with them.
    for name in sorted(delta.features) if delta.before.features else ():
        levels = (delta.before.features.get(name, 0), delta.after.features.get(name, 0))
        yield "feature level changed", {"feature": name, "before": levels[0], "after": levels[1]}


def unclean_elections(delta: MetadataDelta) -> int:
    """How many partitions got a leader from outside of ISR and ELR, or truncate as their source
    did.
    """
    return sum(
        before is not None
        and after is not None
        and (before.leader != after.leader or _truncates(before, after))
        and _is_unclean(before, after)
        for _, _, _, before, after in delta.partitions.values()
    )


def _broker(before: BrokerRegistration | None, after: BrokerRegistration | None) -> Iterator[Event]:
    if after is None:
        if before is not None:
            yield "broker unregistered", {"broker": before.id, "epoch": before.epoch}
        return
    own: dict[str, object] = {"broker": after.id, "epoch": after.epoch}
    if before is None or before.epoch != after.epoch:
        endpoints = [f"{each.name}://{each.host}:{each.port}" for each in after.listeners.values()]
        rack = {} if after.rack is None else {"rack": after.rack}
        yield "broker registered", {**own, "listeners": endpoints, **rack}
        return
    if after.in_controlled_shutdown and not before.in_controlled_shutdown:
        yield "broker in controlled shutdown", own
    if after.fenced != before.fenced:
        yield "broker fenced" if after.fenced else "broker unfenced", own
    if after.directories != before.directories:
        counts = {"directories": len(after.directories), "before": len(before.directories)}
        yield "broker's log directories changed", {**own, **counts}


def _topics(delta: MetadataDelta) -> Iterator[Event]:
    for topic_id, topic in delta.removed_topics.items():
        yield (
            "topic deleted",
            {"topic": topic.name, "id": uuid_text(topic_id), "partitions": len(topic.partitions)},
        )
    for topic_id, topic in delta.created_topics.items():
        first = next(iter(topic.partitions.values()), None)
        yield (
            "topic created",
            {
                "topic": topic.name,
                "id": uuid_text(topic_id),
                "partitions": len(topic.partitions),
                "replication_factor": 0 if first is None else len(first.replicas),
            },
        )
    grown = Counter(
        change.topic_id
        for change in islice(delta.partitions.values(), _MOST_LOOKED_AT)
        if change.before is None and change.topic_id not in delta.created_topics
    )
    for topic_id, count in grown.items():
        topic = delta.after.topics_by_id[topic_id]
        total = len(topic.partitions)
        yield (
            "partitions added",
            {"topic": topic.name, "partitions": total, "before": total - count},
        )


def _elections(changed: list[PartitionDelta]) -> Iterator[Event]:
    elected = [
        (change, before, after)
        for change in changed
        if (before := change.before) is not None
        and (after := change.after) is not None
        and (before.leader != after.leader or _truncates(before, after))
    ]
    if len(elected) == 1:
        change, before, after = elected[0]
        yield (
            "leader elected" if after.leader != NO_LEADER else "partition has no leader",
            {
                "partition": _name(change),
                "leader": after.leader,
                "before": before.leader,
                "leader_epoch": after.leader_epoch,
                "isr": after.isr,
                "unclean": _is_unclean(before, after),
                **({"last_known_leader": True} if _is_last_known(before, after) else {}),
            },
        )
    elif elected:
        known = sum(_is_last_known(before, after) for _, before, after in elected)
        leaders = Counter(after.leader for _, _, after in elected)
        yield (
            "leaders elected",
            {
                "partitions": len(elected),
                "leaders": [f"{node}:{count}" for node, count in sorted(leaders.items())],
                "offline": leaders[NO_LEADER],
                "unclean": sum(_is_unclean(before, after) for _, before, after in elected),
                **({"last_known_leaders": known} if known else {}),
                "first": _name(elected[0][0]),
            },
        )


def _is_unclean(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    """Whether it has a leader from outside of the ISR and the ELR, or one that truncates."""
    if after.leader == NO_LEADER or after.leader_recovery_state != RECOVERING:
        return False
    # A leader that returns may still be marked as recovering: its next ISR change ends that.
    return after.leader not in (*before.isr, *before.elr) or _truncates(before, after)


def _is_last_known(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    """Whether an unclean election, as Kafka counts it, chose the one that led last (KIP-966): no
    other replica has records that it lacks, but for what it lost itself.
    """
    return before.last_known_elr == (after.leader,) and _is_unclean(before, after)


def _truncates(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    """Whether the leader begins an epoch to drop what a mirror's source lost."""
    return (
        after.leader == before.leader != NO_LEADER
        and after.leader_epoch > before.leader_epoch
        and after.leader_recovery_state == RECOVERING
        and after.isr == (after.leader,)
        and after.replicas == before.replicas  # else it is a reassignment
    )


def _shrunk(changed: list[PartitionDelta]) -> Iterator[Event]:
    shrunk = [
        change
        for change in changed
        if change.before is not None
        and change.after is not None
        and len(change.after.isr) < len(change.before.isr)
    ]
    if shrunk:
        yield "ISR shrunk", {"partitions": len(shrunk), "first": _name(shrunk[0])}


def _reassignments(changed: list[PartitionDelta]) -> Iterator[Event]:
    kinds: dict[str, list[PartitionDelta]] = {}
    for change in changed:
        before, after = change.before, change.after
        assert before is not None and after is not None
        moved, moves = bool(before.adding or before.removing), bool(after.adding or after.removing)
        if moves and (after.adding, after.removing) != (before.adding, before.removing):
            kinds.setdefault("reassignment started", []).append(change)
        elif moved and not moves:
            was = set(before.replicas) - set(before.adding)
            kind = "cancelled" if set(after.replicas) == was else "completed"
            kinds.setdefault(f"reassignment {kind}", []).append(change)
        elif not moves and set(before.replicas) != set(after.replicas):
            # Only where nothing had to be copied.
            kinds.setdefault("reassignment completed", []).append(change)
    for kind, of_kind in kinds.items():
        if len(of_kind) > 1:
            yield kind, {"partitions": len(of_kind), "first": _name(of_kind[0])}
            continue
        (change,) = of_kind
        assert change.before is not None and change.after is not None
        after = change.after
        target = [node for node in after.replicas if node not in after.removing]
        yield kind, {"partition": _name(change), "replicas": target, "before": _was(change)}


def _was(change: PartitionDelta) -> list[int]:
    before = change.before
    assert before is not None
    return [node for node in before.replicas if node not in before.adding]


def _configs(delta: MetadataDelta) -> Iterator[Event]:
    removed = {topic.name for topic in delta.removed_topics.values()}
    for kind, name in sorted(delta.configs):
        if kind == TOPIC_RESOURCE and name in removed:
            continue
        before, after = delta.before.config(kind, name), delta.after.config(kind, name)
        changes = _differences(kind, before, after)
        if changes:
            resource = _RESOURCES.get(kind, str(kind))
            yield "settings changed", {"resource": resource, "name": name, "changes": changes}


def _differences(kind: int, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`name=value;name=(default)` of all that differ; of a secret only that it did."""
    return ";".join(
        f"{name}={_shown(kind, name, after)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _shown(kind: int, name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        return "(default)"
    return "[hidden]" if kind == BROKER_RESOURCE and is_secret(name) else values[name]


def _name(change: PartitionDelta) -> str:
    return f"{change.topic}-{change.partition}"
