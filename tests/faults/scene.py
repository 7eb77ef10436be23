"""What a fault has at hand, and the table of faults.

How long a fault holds is part of the fault, and drawn from the seed, like its victims: no wait here
stands for a condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from tests.faults.cluster import BROKERS, Cluster

Kind = Callable[["Scene"], str]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", "-")] = function
    return function


class Scene:
    """What a fault has at hand.

    `moves`: ("kill" or "handover", seconds until the others led what the victim had led).
    """

    def __init__(self, cluster: Cluster, random: Random, topic: str) -> None:
        self.cluster, self.relays, self.random, self.topic = cluster, cluster.relays, random, topic
        self.moves: list[tuple[str, float]] = []

    @property
    def controller(self) -> str:
        """Whoever decides now."""
        return self.cluster.controller.name

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
        self.moves.append(
            (
                how,
                self.cluster.until(
                    lambda: self.cluster.led_by(name) == 0,
                    f"others lead what {name} led",
                    look=0.01,
                ),
            )
        )
