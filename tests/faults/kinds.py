"""The faults: each kind does its harm and holds it for a while; putting right what is left of it is the round's business (`Cluster.heal`).

How long a fault holds is part of the fault, and drawn from the seed, like its victims: no wait here stands for a condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from tests.faults.cluster import BROKERS, Cluster, ways
from tests.faults.relay import CLIENTS

Kind = Callable[["Scene"], str]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", "-")] = function
    return function


class Scene:
    """What a fault has at hand. `moves`: ("kill" or "handover", seconds until the others led what the victim had led)."""

    def __init__(self, cluster: Cluster, random: Random, topic: str) -> None:
        self.cluster, self.relays, self.random, self.topic = cluster, cluster.relays, random, topic
        self.controller = cluster.controller.name
        self.moves: list[tuple[str, float]] = []

    def broker(self) -> str:
        return self.random.choice(BROKERS)

    def leader(self) -> str:
        """Who leads a partition of the topic."""
        found = sorted(self.cluster.standings(self.topic).items())
        return str(self.random.choice(found)[1].leader)

    def hold(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))

    def kill(self, *names: str) -> None:
        for name in names:
            self.cluster.nodes[name].kill()

    def moved(self, how: str, name: str) -> None:
        """Waits until others lead, and notes how long that took."""
        self.moves.append((how, self.cluster.until(lambda: self.cluster.led_by(name) == 0, f"others lead what {name} led")))


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
    scene.kill(scene.controller)
    scene.hold(0.5, 4)
    return scene.controller


@kind
def kill_controller_then_leader(scene: Scene) -> str:
    """Nobody is there to move leadership until the controller is back."""
    victim = scene.leader()
    scene.kill(scene.controller)
    scene.hold(0, 0.5)
    scene.kill(victim)
    scene.hold(0, 2)
    return f"{scene.controller} {victim}"


@kind
def stop_broker(scene: Scene) -> str:
    """SIGSTOP: shorter or longer than its session and the time after which it leaves the ISR."""
    victim = scene.leader()
    scene.cluster.nodes[victim].pause()
    scene.hold(0.5, 6)
    return victim


@kind
def stop_controller(scene: Scene) -> str:
    scene.cluster.controller.pause()
    scene.hold(0.5, 6)
    return scene.controller


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
        scene.cluster.until(lambda: not scene.cluster.sick(), lambda: f"in sync after a restart: {scene.cluster.sick()}")
    return " ".join(order)


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
