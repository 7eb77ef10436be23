"""Faults of processes: killed, stopped, restarted.

`SIGKILL` leaves a process no moment; what it wrote is in the page cache, and survives it.
"""

from __future__ import annotations

from tests.faults.cluster import BROKERS
from tests.faults.scene import Scene, kind


@kind
def kill_leader(scene: Scene) -> str:
    """It stays dead until others have taken over."""
    victim = scene.leader()
    is_controller = victim == scene.controller
    scene.kill(victim)
    if not is_controller:
        scene.moved("kill", victim)
    scene.hold(0, 2)
    return victim


@kind
def kill_and_back(scene: Scene) -> str:
    """It is back before its session ends, perhaps several times."""
    victim = scene.broker()
    times = scene.random.randint(1, 3)
    for _ in range(times):
        scene.kill(victim)
        scene.cluster.start_all()
    return f"{victim} x {times}"


@kind
def kill_two(scene: Scene) -> str:
    victims = scene.random.sample(BROKERS, 2)
    scene.kill(victims[0])
    scene.hold(0, 1)
    scene.kill(victims[1])
    scene.hold(0, 3)
    return " ".join(victims)


@kind
def kill_all(scene: Scene) -> str:
    """All brokers, within a moment; sometimes the controller with them."""
    names = list(scene.cluster.nodes) if scene.random.random() < 0.5 else list(BROKERS)
    scene.random.shuffle(names)
    scene.kill(*names)
    scene.hold(0, 1)
    return " ".join(names)


@kind
def kill_controller(scene: Scene) -> str:
    victim = scene.controller
    scene.kill(victim)
    scene.hold(0.5, 4)
    return victim


@kind
def kill_controller_then_leader(scene: Scene) -> str:
    """Nobody is there to move leadership until the controller is back."""
    victim, controller = scene.leader(), scene.controller
    scene.kill(controller)
    scene.hold(0, 0.5)
    scene.kill(victim)
    scene.hold(0, 2)
    return f"{controller} {victim}"


@kind
def stop_broker(scene: Scene) -> str:
    """SIGSTOP: shorter or longer than its session and the time after which it leaves the ISR."""
    victim = scene.leader()
    scene.cluster.nodes[victim].pause()
    scene.hold(0.5, 6)
    return victim


@kind
def stop_controller(scene: Scene) -> str:
    victim = scene.controller
    scene.cluster.nodes[victim].pause()
    scene.hold(0.5, 6)
    return victim


@kind
def rolling_restart(scene: Scene) -> str:
    """One by one, by SIGTERM, each after the one before is in sync again."""
    order = scene.random.sample(BROKERS, len(BROKERS))
    for name in order:
        node = scene.cluster.nodes[name]
        node.ask_to_leave()
        if name != scene.controller:
            scene.moved("handover", name)
        node.await_gone()
        scene.cluster.start_all()
        scene.cluster.until(
            lambda: not scene.cluster.sick(),
            lambda: f"in sync after a restart: {scene.cluster.sick()}",
        )
    return " ".join(order)


@kind
def leave_without_controller(scene: Scene) -> str:
    """SIGTERM, and nobody there who could take leadership over: it ends all the same."""
    controller = scene.controller
    victim = scene.random.choice([name for name in BROKERS if name != controller])
    scene.kill(controller)
    node = scene.cluster.nodes[victim]
    node.ask_to_leave()
    node.await_gone()
    return f"{victim} without {controller}"
