"""Faults of the network: ways that are cut, slow, or lose their connections."""

from __future__ import annotations

from tests.faults.cluster import BROKERS, ways
from tests.faults.relay import CLIENTS
from tests.faults.scene import Scene, kind


@kind
def cut_controller(scene: Scene) -> str:
    """A broker from the controller: others and clients still reach it."""
    victim = scene.random.choice([name for name in BROKERS if name != scene.controller])
    scene.relays.cut(*ways(victim, scene.controller))
    scene.hold(1, 6)
    return f"{victim} from {scene.controller}"


@kind
def cut_pair(scene: Scene) -> str:
    one, other = scene.random.sample(BROKERS, 2)
    scene.relays.cut(*ways(one, other))
    scene.hold(1, 7)
    return f"{one} from {other}"


@kind
def cut_one_way(scene: Scene) -> str:
    one, other = scene.random.sample(sorted({*BROKERS, scene.controller}), 2)
    scene.relays.cut((one, other))
    scene.hold(1, 7)
    return f"{one} to {other}"


@kind
def isolate(scene: Scene) -> str:
    """A broker from all other nodes; clients still reach it."""
    victim = scene.leader()
    scene.relays.cut(*ways(victim, *({*BROKERS, scene.controller} - {victim})))
    scene.hold(1, 7)
    return victim


@kind
def isolate_then_kill(scene: Scene) -> str:
    """What a leader took while it was alone dies with it."""
    victim = scene.leader()
    scene.relays.cut(*ways(victim, *({*BROKERS, scene.controller} - {victim})))
    scene.hold(0.2, 5)
    scene.kill(victim)
    scene.relays.heal()
    scene.hold(0, 2)
    return victim


@kind
def cut_clients(scene: Scene) -> str:
    """All clients from a leader: both ways, or so that only its answers are lost."""
    victim = scene.leader()
    both = scene.random.random() < 0.5
    scene.relays.cut(*(ways(CLIENTS, victim) if both else [(victim, CLIENTS)]))
    scene.hold(1, 5)
    return f"{'clients from' if both else 'answers of'} {victim}"


@kind
def drop_connections(scene: Scene) -> str:
    """All connections of somebody break, again and again."""
    victim = scene.random.choice([*BROKERS, CLIENTS])
    times = scene.random.randint(2, 6)
    for _ in range(times):
        scene.relays.drop(victim)
        scene.hold(0.05, 0.6)
    return f"{victim} x {times}"


@kind
def slow_brokers(scene: Scene) -> str:
    """Brokers hear of each other late."""
    delay = scene.random.uniform(0.02, 0.4)
    scene.relays.slow(delay, *(way for name in BROKERS for way in ways(name, *BROKERS)))
    scene.hold(2, 5)
    return f"{delay:.2f} s"


@kind
def slow_controller(scene: Scene) -> str:
    delay = scene.random.uniform(0.02, 0.6)
    scene.relays.slow(delay, *ways(scene.controller, *BROKERS))
    victim = scene.leader()
    scene.kill(victim)
    scene.hold(2, 5)
    return f"{delay:.2f} s, and {victim} killed"
