"""The changes while time was moved: leaders, ISRs, log starts, members, transactions.

Owns `Changes`, which looks at a cluster, and `changes`, the sentences between two looks.

Source: our own. Not here: the clock (`live_clock.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.testing.cluster_calls import CallFailed, ClusterCalls
from twisted_broker.testing.group_members import GroupMembers

_SECONDS = 1.0


class Seen(NamedTuple):
    """By name. A group's members have their client ids."""

    leaders: dict[TopicPartition, int]
    isrs: dict[TopicPartition, list[int]]
    starts: dict[TopicPartition, int]
    members: dict[str, dict[str, str]]
    transactions: dict[str, str]


class Changes:
    """Of a cluster."""

    def __init__(
        self, calls: ClusterCalls, brokers: Sequence[KafkaServer], members: GroupMembers
    ) -> None:
        self._calls, self._brokers, self._members = calls, brokers, members

    async def seen(self) -> Seen:
        """As the brokers that run know it; what does not answer at once is left out."""
        found = Seen({}, {}, {}, {}, {})
        for broker in self._brokers:
            assert broker.broker_server is not None
            for topic in broker.broker_server.observer.image.topics_by_name.values():
                for number, known in topic.partitions.items():
                    name = TopicPartition(topic.name, number)
                    found.leaders[name] = known.leader
                    found.isrs[name] = sorted(known.isr)
                    own = broker.broker_server.replica_manager.partitions.get(name)
                    if own is not None and own.is_leader and own.leader_log is not None:
                        found.starts[name] = own.leader_log.log_start_offset
        for group in self._members.groups:
            try:
                described = await self._calls.group(group, within=_SECONDS)
            except (CallFailed, TimeoutError):
                continue
            found.members[group] = {each["id"]: each["client_id"] for each in described["members"]}
        if any(each.topic == "__transaction_state" for each in found.leaders):
            found.transactions.update(await self._calls.transactions())
        return found


def changes(before: Seen, after: Seen) -> list[str]:
    """A sentence each."""
    return [*_of_partitions(before, after), *_of_members(before, after), *_of_ids(before, after)]


def _of_partitions(before: Seen, after: Seen) -> Iterator[str]:
    for name, leader in before.leaders.items():
        now = after.leaders.get(name, leader)
        if now != leader:
            who = f"broker {now} leads" if now >= 0 else "nobody leads"
            yield f"{name}: {who}, before broker {leader}"
        isr = after.isrs.get(name, before.isrs[name])
        if isr != before.isrs[name]:
            yield f"{name}: ISR {_listed(before.isrs[name])} -> {_listed(isr)}"
    for name, start in before.starts.items():
        if after.starts.get(name, start) != start:
            yield f"{name}: start {start} -> {after.starts[name]}"


def _listed(ids: list[int]) -> str:
    return " ".join(map(str, ids)) or "empty"


def _of_members(before: Seen, after: Seen) -> Iterator[str]:
    for group, members in before.members.items():
        for member in members.keys() - after.members.get(group, members).keys():
            yield f"{group}: member {member} of client {members[member]} expired"


def _of_ids(before: Seen, after: Seen) -> Iterator[str]:
    for name, state in before.transactions.items():
        now = after.transactions.get(name, "Dead")
        if now != state:
            yield f"transactional id {name}: {state} -> {now}"
