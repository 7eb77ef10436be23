"""Faults of controllers of several: the active one is struck.

Owns `QuorumFaults`, which has one actor more, and the faults of it (`faults/base.py` says what a
fault is).

Not here: which of them a seed has (`quorum/options.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from twisted_broker.simulation.fault_schedule import FAULTS, Faults
from twisted_broker.simulation.faults import disk, machine, network
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import SimNode
from twisted_broker.simulation.schedule import Actor


def active_of(injector: FaultInjector) -> SimNode | None:
    """The machine of the active controller: of the highest epoch, where two think they are."""
    found: list[tuple[int, SimNode]] = []
    for node in injector.cluster.nodes.values():
        controller = None if node.broker is None else node.broker.parts.controller
        if controller is not None and controller.is_active:
            found.append((controller.epoch, node))
    return max(found, key=lambda each: each[0])[1] if found else None


def _of_active(fault: Callable[[FaultInjector, SimNode], None]) -> Callable[..., None]:
    def strikes(injector: FaultInjector, node: SimNode) -> None:
        fault(injector, active_of(injector) or node)

    return strikes


def _two_die(injector: FaultInjector, node: SimNode) -> None:
    """No majority is left until one is back."""
    controllers = [injector.cluster.nodes[name] for name in injector.cluster.controllers]
    for each in injector.random.sample(controllers, 2):
        machine.kill(injector, each)


def _slow(injector: FaultInjector, node: SimNode) -> None:
    """Its disk syncs no sooner than in tens of milliseconds, or not at all for a while."""
    injector.random.choice((disk.slow_disk, disk.stall))(injector, node)


# Some round trips.
_LOOK_SECONDS, _LOOKS = 0.001, 3000


def _dies_amid_a_transaction(injector: FaultInjector, node: SimNode) -> None:
    """As soon as a standby has the beginning of a metadata transaction, and not its end."""
    injector.clock.callLater(_LOOK_SECONDS, _strike_amid, injector, _LOOKS)


def _strike_amid(injector: FaultInjector, looks: int) -> None:
    active = active_of(injector)
    if active is not None and any(
        _is_within(injector.cluster.nodes[name])
        for name in injector.cluster.controllers
        if name != active.name
    ):
        machine.kill(injector, active)
    elif looks and not injector.ended:
        injector.clock.callLater(_LOOK_SECONDS, _strike_amid, injector, looks - 1)


def _is_within(node: SimNode) -> bool:
    controller = None if node.broker is None else node.broker.parts.controller
    return controller is not None and controller.log.transactions.open


CONTROLLER_FAULTS: dict[str, Callable[[FaultInjector, SimNode], None]] = {
    "active controller dies": _of_active(
        lambda injector, node: injector.random.choice((machine.kill, machine.power))(injector, node)
    ),
    "active controller is cut off": _of_active(
        lambda injector, node: injector.random.choice(
            (network.partition, network.one_way, machine.pause)
        )(injector, node)
    ),
    "active controller is slow": _of_active(_slow),
    "active controller stops": _of_active(machine.stop),
    "two controllers die": _two_die,
    "active controller dies amid a transaction": _dies_amid_a_transaction,
}


class QuorumFaults(Faults):
    """See the module's card."""

    table = FAULTS | CONTROLLER_FAULTS

    def begin(self, actor: Callable[[str], Actor]) -> None:
        if self.options.controller_faults:
            self._await_next(actor("controller faults"), lambda random: 3 + random.random() * 5)

    def _kinds(self, actor: Actor) -> list[str]:
        of_controllers = actor.name == "controller faults"
        return self.options.controller_faults if of_controllers else super()._kinds(actor)

    def _victims(self, actor: Actor) -> list[str]:
        of_controllers = actor.name == "controller faults"
        return self.cluster.controllers if of_controllers else super()._victims(actor)

    def _pause(self, actor: Actor, random: Random) -> float:
        if actor.name == "controller faults":
            return 1 + random.expovariate(1 / self.options.controller_fault_seconds)
        return super()._pause(actor, random)
