"""What happens to the members of a consumer group, and to its coordinator and that of transactions.

Owns those faults (`faults/base.py` says what a fault is). Members are clients: what hits them
breaks nothing that a liveness run is owed. Not here: what a member does by itself
(`testing/sim/member.py`), what must hold (`testing/checks/groups.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.testing.faults.base import FaultInjector
from twisted_broker.testing.sim.member import SESSION_MS, Member
from twisted_broker.testing.sim.node import SimNode


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
    """A broker that coordinates transactions, in the same way."""
    machines = [injector.cluster.nodes[name] for name in injector.victims]
    _kill_one(injector, [machine for machine in machines if _coordinates_transactions(machine)])


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
    role = None if node.broker is None else node.broker.role
    return role is not None and any(shard.groups for shard in role.groups.runtime.shards.values())


def _coordinates_transactions(node: SimNode) -> bool:
    role = None if node.broker is None else node.broker.role
    return role is not None and any(
        shard.transactions for shard in role.transactions.states.shards.values()
    )


def _any(injector: FaultInjector) -> Member:
    return injector.random.choice(injector.members)
