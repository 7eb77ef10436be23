"""Machine faults: a process dies, stops or is paused, a machine loses power, its calendar steps.

Owns those faults (`faults/base.py` says what a fault is). Not here: network faults, disk faults,
triggered faults.
"""

from __future__ import annotations

from twisted_broker.simulation.faults.base import FaultInjector, resume
from twisted_broker.simulation.node import SimNode

CLOCK_STEPS = ("clock steps back", "clock steps forwards")


def kill(injector: FaultInjector, node: SimNode) -> None:
    """Its process is killed and starts again; the disk keeps all."""
    if node.is_up:
        node.kill()
    injector.schedule(lambda: injector.restart(node))


def power(injector: FaultInjector, node: SimNode) -> None:
    """It loses power and what was not synced, and starts again."""
    if node.is_up:
        node.lose_power()
    injector.schedule(lambda: injector.restart(node))


def flap(injector: FaultInjector, node: SimNode) -> None:
    """Power comes and goes: what the machine sent before may arrive after it is back."""
    if node.is_up:
        node.lose_power()
    injector.clock.callLater(injector.random.random() * 0.1, injector.restart, node)
    injector.clock.callLater(0.5 + injector.random.random() * 1.5, _flap_again, injector, node)


def _flap_again(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up and not injector.ended:
        node.lose_power()
    injector.clock.callLater(injector.random.random() * 0.1, injector.restart, node)


def crash(injector: FaultInjector, node: SimNode) -> None:
    """Power is lost in one of the next operations on the disk."""
    if node.is_up:
        node.disk.crash_at = node.disk.operations + injector.random.randrange(60)
    injector.clock.callLater(4 + injector.random.random() * 6, injector.restart, node)


def stop(injector: FaultInjector, node: SimNode) -> None:
    """SIGTERM."""
    if node.is_up and not node.clock.paused:
        node.stop()
    # After the longest controlled shutdown (10 s).
    injector.clock.callLater(11 + injector.random.random() * 5, injector.restart, node)


def pause(injector: FaultInjector, node: SimNode) -> None:
    """It stands still for a while: SIGSTOP, a suspended machine."""
    if node.is_up and not node.clock.paused:
        clock = node.clock
        node.pause()
        injector.schedule(lambda: resume(node, clock), 15.0)


def stop_and_power(injector: FaultInjector, node: SimNode) -> None:
    """Power is lost right after a clean stop: what that did not sync is gone."""
    if node.is_up and not node.clock.paused and not node.stopping:
        incarnation = node.incarnation
        node.stop()
        injector.clock.callLater(0.01, _power_when_stopped, injector, node, incarnation)
    injector.clock.callLater(14 + injector.random.random() * 5, injector.restart, node)


def _power_when_stopped(injector: FaultInjector, node: SimNode, incarnation: int) -> None:
    if node.incarnation != incarnation:
        return
    if not node.is_up:
        injector.note(f"{node.name} loses power after its stop")
        node.lost_power = True
        injector.cluster.gone(node)  # once more: a kill may have come before the stop was clean
    elif not injector.ended:
        injector.clock.callLater(0.01, _power_when_stopped, injector, node, incarnation)


def step_clock(injector: FaultInjector, node: SimNode) -> None:
    """The calendar steps, forwards or back; timers go on as before."""
    step_ms = injector.random.choice((-30_000, -3_000, -200, 200, 3_000, 30_000))
    injector.note(f"the calendar of {node.name} steps by {step_ms} ms")
    node.skew_ms += step_ms
    node.clock.skew_ms += step_ms
    injector.struck(CLOCK_STEPS[step_ms > 0])


def hiccup(injector: FaultInjector, node: SimNode) -> None:
    """The reactor stands still in a read or a write, again and again."""
    for _ in range(injector.random.randint(1, 5)):
        injector.schedule(
            lambda: injector.pause_for(node, injector.random.random() ** 2 * 1.5), 3.0
        )
