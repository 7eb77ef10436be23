"""The assignor `simple`. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `assign_simply`.

1. Each partition is shared by as many members, rounded up, as make the load even: with fewer
   partitions than members all are read by several.
2. A partition that its member keeps is not moved. A member keeps no more than its even part.
3. Members that do not all subscribe alike are looked at topic by topic.
4. Every partition has a member.

Source: Apache Kafka 4.3.1 `SimpleAssignor`, `SimpleHomogeneousAssignmentBuilder`,
`SimpleHeterogeneousAssignmentBuilder`. Kafka's order of members and partitions is that of a hash
map; here they are sorted.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from twisted_broker.coordinator.consumer.partitions import Target, TopicIdPartition

# A step of about a millisecond (`turns.py`, invariant 4).
ASSIGNED_PER_STEP = 500


def assign_simply(
    members: Mapping[str, tuple[frozenset[bytes], Target]],
    partitions: Mapping[bytes, frozenset[int]],
) -> Generator[None, None, dict[str, Target]]:
    """The target of every member, in steps. `members`: the ids of the topics that each subscribes
    to, and what it has now; `partitions`: those that may be assigned, by topic id.
    """
    names = sorted(members)
    targets: dict[str, set[TopicIdPartition]] = {name: set() for name in names}
    for readers, topic_ids in _pools(names, members, partitions):
        pool = [
            (topic_id, number)
            for topic_id in sorted(topic_ids)
            for number in sorted(partitions[topic_id])
        ]
        before = [members[name][1] for name in readers]
        shares = yield from _share_out(pool, before)
        for name, share in zip(readers, shares, strict=True):
            targets[name] |= share
    return {name: frozenset(target) for name, target in targets.items()}


def _pools(
    names: Sequence[str],
    members: Mapping[str, tuple[frozenset[bytes], Target]],
    partitions: Mapping[bytes, frozenset[int]],
) -> list[tuple[list[str], list[bytes]]]:
    """Members, and the topics that are shared out between them."""
    if len({members[name][0] for name in names}) == 1:
        topics = members[names[0]][0]
        return [(list(names), [each for each in partitions if each in topics])]
    return [
        (readers, [topic_id])
        for topic_id in sorted(partitions)
        if (readers := [name for name in names if topic_id in members[name][0]])
    ]


def _share_out(
    partitions: Sequence[TopicIdPartition], before: Sequence[Target]
) -> Generator[None, None, list[set[TopicIdPartition]]]:
    """What each member gets; `before`: what each has now."""
    count = len(before)
    sharing = -(-count // len(partitions)) if partitions else 0
    total = sharing * len(partitions)
    most = [-(-total * (i + 1) // count) + (-total * i // count) for i in range(count)]
    readers: dict[TopicIdPartition, list[int]] = {each: [] for each in partitions}
    shares: list[set[TopicIdPartition]] = []
    work = 0
    for member, owned in enumerate(before):
        # Those that few have are kept first, so that little must be handed out anew.
        kept = [each for each in owned if each in readers and len(readers[each]) < sharing]
        kept.sort(key=lambda each: (len(readers[each]), each))
        shares.append(set(kept[: most[member]]))
        for each in shares[-1]:
            readers[each].append(member)
        work += 1 + len(owned)
        if work >= ASSIGNED_PER_STEP:
            work = 0
            yield
    open_members = [i for i in range(count) if len(shares[i]) < most[i]]
    turn = 0
    for number, partition in enumerate(partitions, 1):
        missed = 0
        while len(readers[partition]) < sharing and missed < len(open_members):
            turn %= len(open_members)
            member = open_members[turn]
            if partition in shares[member]:
                missed, turn = missed + 1, turn + 1
                continue
            missed = 0
            shares[member].add(partition)
            readers[partition].append(member)
            if len(shares[member]) == most[member]:
                del open_members[turn]
            else:
                turn += 1
        if number % ASSIGNED_PER_STEP == 0:
            yield
    return shares
