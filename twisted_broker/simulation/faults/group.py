"""Faults of the members of a consumer group, of its coordinator and that of transactions.

A coordinator of transactions is struck at any time, or as soon as it has decided one and its
markers are on their way: they may come late then, behind those of the next coordinator.

Owns those faults (`faults/base.py` says what a fault is). Members are clients: what hits them
breaks nothing that a liveness run is owed. Not here: what a member does by itself
(`simulation/member.py`), what must hold (`simulation/checks/groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    TransactionMarkerSender,
)
from twisted_broker.coordinator.transaction.transaction_metadata import PREPARE_COMMIT, PREPARED
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.faults.base import FaultInjector, partitions, resume
from twisted_broker.simulation.member import SESSION_MS, Member
from twisted_broker.simulation.node import SimNode

_CONTROLLER = "n1"
_AMID_AN_END, _LATE, _LATE_OF_VERSION_1 = 0.7, 0.5, 0.9
_LOOK_SECONDS, _LOOKS = 0.02, 600
_LONGEST_SECONDS = _LOOK_SECONDS * _LOOKS
Open = Mapping[tuple[str, TopicPartition, int], int]
"""(machine, partition, producer id) -> where the open transaction begins, at its leader"""


def member_joins(injector: FaultInjector, node: SimNode) -> None:
    """One that left comes back; where none did, one leaves and comes back soon."""
    away = [member for member in injector.members if member.is_away]
    if away:
        injector.random.choice(away).joins()
    else:
        member = _any(injector)
        member.leaves()
        injector.schedule(member.joins, 2.0)


def member_leaves(injector: FaultInjector, node: SimNode) -> None:
    """In order; one stays."""
    there = [member for member in injector.members if not member.is_away]
    if len(there) > 1:
        member = injector.random.choice(there)
        member.leaves()
        injector.schedule(member.joins, 20.0)


def member_crashes(injector: FaultInjector, node: SimNode) -> None:
    """Without a word: its session must run out, or not even that before it joins again."""
    _any(injector).crashes(injector.random.random() ** 2 * 3 * SESSION_MS / 1000)


def member_stalls(injector: FaultInjector, node: SimNode) -> None:
    """It does nothing for about as long as its session lasts, and goes on as if nothing were."""
    _any(injector).stalls((0.5 + injector.random.random() * 2) * SESSION_MS / 1000)


def coordinator_dies(injector: FaultInjector, node: SimNode) -> None:
    """A broker that coordinates the group, by a kill or a loss of power."""
    machines = [injector.cluster.nodes[name] for name in injector.victims]
    _kill_one(injector, [machine for machine in machines if _coordinates(machine)])


def transaction_coordinator_dies(injector: FaultInjector, node: SimNode) -> None:
    """A broker that coordinates transactions, in the same way; as often the next one that sends
    markers, and then.
    """
    if injector.late_markers:
        return  # whoever dies now takes the way to its end with it
    if injector.random.random() < _AMID_AN_END:
        injector.at_markers[:] = [lambda sender: _strike_amid_an_end(injector, sender)]
        return
    machines = [injector.cluster.nodes[name] for name in injector.victims]
    _kill_one(injector, [machine for machine in machines if _coordinates_transactions(machine)])


def _strike_amid_an_end(injector: FaultInjector, sender: TransactionMarkerSender) -> bool:
    """Whether it did."""
    nodes = [injector.cluster.nodes[name] for name in injector.victims]
    node = next((each for each in nodes if _transactions_of(each, sender)), None)
    if injector.ended or injector.held or injector.late_markers or node is None:
        return False
    if injector.random.random() < (_LATE_OF_VERSION_1 if injector.has_version_1 else _LATE):
        if node.name == _CONTROLLER:
            return False
        # Before anything that it sends now gets anywhere.
        injector.clock.callLater(0, _delay_markers, injector, node)
    else:
        # Within a way's length: the answer to EndTxn may get out, or not.
        delay = injector.random.random() * injector.cluster.network.conditions.delay_max
        injector.clock.callLater(delay, _kill_amid_an_end, injector, node)
    return True


def _kill_amid_an_end(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up:
        injector.struck("coordinator died amid an end")
        _kill_one(injector, [node])


def _delay_markers(injector: FaultInjector, node: SimNode) -> None:
    """What it sent is under way until one of the producers has begun its next transaction. It
    stands still for longer (it is not the controller, who says who leads): a producer of version 1
    is not safe from a late marker of a coordinator that nobody followed.
    """
    open_there = _open_transactions(injector, node)
    leaders, network = {name for name, _, _ in open_there}, injector.cluster.network
    ways = [
        near
        for near in network.connections
        if near.clock is node.clock and near.connected and near.pipe.travelling
    ]
    if not any(near.peer.clock.name in leaders for near in ways):
        injector.at_markers.append(lambda sender: _strike_amid_an_end(injector, sender))
        return
    if not node.healthy or injector.clock.seconds() + _LONGEST_SECONDS + 3 > injector.seconds:
        return
    injector.struck("markers came late")
    injector.late_markers.append(node.name)
    held, clock = [network.hold(near) for near in ways], node.clock
    node.pause()

    def release() -> None:
        injector.late_markers.remove(node.name)
        for each in held:
            each(injector.random.random() * network.conditions.delay_max)
        injector.clock.callLater(0.5 + 2 * injector.random.random(), resume, node, clock)

    _look_for_the_next(injector, open_there, release, _LOOKS)


def _look_for_the_next(
    injector: FaultInjector, before: Open, release: Callable[[], None], looks: int
) -> None:
    if not looks or _has_begun(injector, before):
        release()
    else:
        injector.clock.callLater(
            _LOOK_SECONDS, _look_for_the_next, injector, before, release, looks - 1
        )


def _open_transactions(injector: FaultInjector, coordinator: SimNode) -> Open:
    """Those that it has prepared, at the leaders that it tells. Where producers are of version 1,
    only those of which no later epoch will tell: what they commit.
    """
    server = None if coordinator.broker is None else coordinator.broker.broker_server
    producers = {
        metadata.producer_id
        for shard in (() if server is None else server.transactions.states.shards.values())
        for metadata in shard.transactions.values()
        if (
            metadata.state is PREPARE_COMMIT and metadata.client_transaction_version < 2
            if injector.has_version_1
            else metadata.state in PREPARED
        )
    }
    return {
        (node.name, name, producer_id): first
        for node in injector.cluster.nodes.values()
        for name, partition in partitions(node).items()
        if node is not coordinator and partition.leader_log is not None
        for first, producer_id in partition.leader_log.producers.ongoing.items()
        if producer_id in producers
    }


def _has_begun(injector: FaultInjector, before: Open) -> bool:
    """Whether one of the producers has its next transaction open where it had that one."""
    for (node, name, producer_id), first in before.items():
        partition = partitions(injector.cluster.nodes[node]).get(name)
        log = None if partition is None else partition.leader_log
        entry = None if log is None else log.producers.producers.get(producer_id)
        if entry is not None and entry.current_txn_first_offset > first:
            return True
    return False


def _kill_one(injector: FaultInjector, found: Sequence[SimNode]) -> None:
    if not found:
        return
    coordinator = injector.random.choice(found)
    injector.struck("coordinator died")
    if injector.random.random() < 0.5:
        coordinator.kill()
    else:
        coordinator.lose_power()
    injector.schedule(lambda: injector.restart(coordinator))


def _coordinates(node: SimNode) -> bool:
    server = None if node.broker is None else node.broker.broker_server
    return server is not None and any(
        shard.groups for shard in server.groups.runtime.shards.values()
    )


def _coordinates_transactions(node: SimNode) -> bool:
    server = None if node.broker is None else node.broker.broker_server
    return server is not None and any(
        shard.transactions for shard in server.transactions.states.shards.values()
    )


def _transactions_of(node: SimNode, sender: TransactionMarkerSender) -> bool:
    server = None if node.broker is None else node.broker.broker_server
    return server is not None and server.transactions.markers is sender


def _any(injector: FaultInjector) -> Member:
    return injector.random.choice(injector.members)
