"""Faults upon faults: whole lists of them within seconds, the next before the last is healed."""

from __future__ import annotations

from tests.faults.cluster import ways
from tests.faults.relay import CLIENTS
from tests.faults.scene import Scene, kind


def _kill(scene: Scene) -> None:
    scene.kill(scene.broker())


def _kill_controller(scene: Scene) -> None:
    scene.kill(scene.controller)


def _start(scene: Scene) -> None:
    scene.cluster.start_all()


def _stop(scene: Scene) -> None:
    node = scene.cluster.nodes[scene.broker()]
    if node.process is not None:
        node.pause()


def _go_on(scene: Scene) -> None:
    for node in scene.cluster.nodes.values():
        node.go_on()


def _cut(scene: Scene) -> None:
    one, other = scene.random.sample(sorted({*scene.cluster.nodes, CLIENTS}), 2)
    scene.relays.cut(*(ways(one, other) if scene.random.random() < 0.5 else [(one, other)]))


def _drop(scene: Scene) -> None:
    scene.relays.drop(scene.random.choice([*scene.cluster.nodes, CLIENTS]))


def _heal_network(scene: Scene) -> None:
    scene.relays.heal()


@kind
def storm(scene: Scene) -> str:
    """Anything, in any order."""
    done = []
    for _ in range(scene.random.randint(3, 7)):
        step = scene.random.choice(
            (
                _kill,
                _kill,
                _kill_controller,
                _stop,
                _go_on,
                _cut,
                _cut,
                _drop,
                _heal_network,
                _start,
            )
        )
        if step is _start:
            _go_on(scene)  # a start waits for its processes, which may wait for one that is stopped
            _heal_network(scene)
        step(scene)
        done.append(step.__name__.strip("_").replace("_", "-"))
        scene.hold(0.1, 1.5)
    return " ".join(done)
