"""Groups and transactional ids as their coordinator in this process has them, without a request.

Owns `state_of_group`, `assigned_to` and `state_of_transaction`.

Source: our own; what DescribeGroups, ConsumerGroupDescribe and DescribeTransactions answer. Not
here: who coordinates (`condition_values.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from twisted_broker.consumer.rebalance import assigned_partitions
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError

DEAD = "Dead"


def state_of_group(
    coordinator: KafkaServer, name: str
) -> tuple[str, list[Any], list[tuple[tuple[str, int], int]]]:
    """Kafka's word, its members, what it committed. Raises BrokerError: not known now."""
    assert coordinator.broker_server is not None
    shard = coordinator.broker_server.groups.runtime.shard_of(name, empty_allowed=True, reads=True)
    if name in shard.undecided_groups:
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    entry = shard.groups.get(name)
    if entry is None:
        return DEAD, [], []
    committed = [(where, found.offset) for where, found in entry.offsets.items()]
    return entry.group.state.value, [*entry.group.members.values()], committed


def assigned_to(
    coordinator: KafkaServer, members: Iterable[Any], client: str
) -> list[tuple[str, int]]:
    """Topic and partition, of the members with that client id or member id."""
    assert coordinator.broker_server is not None
    topics = coordinator.broker_server.observer.image.topics_by_id
    found: list[tuple[str, int]] = []
    for each in members:
        if client not in (each.client_id, each.member_id):
            continue
        if hasattr(each, "assignment"):
            try:
                found += assigned_partitions(bytes(each.assignment))
            except WireError:  # of a group of another kind
                continue
            continue
        for held in (each.assigned, getattr(each, "pending", ())):
            if isinstance(held, Mapping | Set | tuple):
                found += [(topics[topic].name, at) for topic, at in held if topic in topics]
    return found


def state_of_transaction(coordinator: KafkaServer, name: str) -> str:
    """Kafka's word. Raises BrokerError: not known now."""
    assert coordinator.broker_server is not None
    states = coordinator.broker_server.transactions.states
    found = states.shard_of(name).transactions.get(name)
    return DEAD if found is None else str(found.state.text)
