"""Topics of a cluster under load: making one, who leads it, how many replicas are in sync."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.requests import Address, Connection

# Three JVMs that start on two cores take most of a minute.
_PATIENCE_SECONDS = 180.0
_LOOK_SECONDS = 0.05
_RETRIED = frozenset({7, 38, 41})
"""CreateTopics: request timed out, too few brokers yet, no controller yet."""


def patiently(condition: Callable[[], bool], what: str, pause_seconds: float = 0.005) -> float:
    """Seconds until it held; a broker that cannot be reached is waited for."""
    began = time.perf_counter()
    while True:
        try:
            if condition():
                return time.perf_counter() - began
        except (OSError, struct.error):
            # Not up yet, or it closed the connection in the middle of an answer.
            pass
        if time.perf_counter() - began > _PATIENCE_SECONDS:
            raise TimeoutError(f"not within {_PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(pause_seconds)


def topic_is_creatable(address: Address, brokers: int) -> bool:
    """Makes a topic with a replica on each of `brokers` brokers; False while that is too early."""
    name = f"ready-{os.getpid()}-{time.monotonic_ns()}"
    with Connection(address) as connection:
        if connection.metadata()[0] < brokers or connection.ask_to_create(name, 1, brokers):
            return False
        while min(connection.metadata(name)[1], default=-1) < 0:
            time.sleep(0.002)
        connection.delete(name)
    return True


class Topic:
    """`leaders`: the address of each partition's leader, when it was made."""

    def __init__(self, name: str, leaders: list[Address]) -> None:
        self.name, self.leaders = name, leaders


@contextmanager
def replicated_topic(
    some_address: Callable[[], Address], partitions: int, replicas: int
) -> Iterator[Topic]:
    """A topic with all replicas in sync, for as long as the block runs.

    `some_address()`: of a broker that runs now.
    """
    name = f"load-{os.getpid()}-{time.monotonic_ns()}"
    with Connection(some_address()) as connection:
        while error := connection.ask_to_create(name, partitions, replicas):
            if error not in _RETRIED:
                raise RuntimeError(f"CreateTopics: error {error}")
            time.sleep(0.05)
        patiently(lambda: is_whole(connection, name, partitions, replicas), f"{name} is in sync")
        brokers, found = connection.describe(name)
    yield Topic(name, [brokers[leader] for leader, _ in found])
    with Connection(some_address()) as connection:
        connection.delete(name)


def is_whole(connection: Connection, name: str, partitions: int, replicas: int) -> bool:
    """Whether every partition has a leader, each of which serves the last of its own, and all
    its replicas in sync.
    """
    brokers, found = connection.describe(name)
    if len(found) != partitions or any(
        leader not in brokers or in_sync < replicas for leader, in_sync in found
    ):
        return False
    for node, number in {leader: number for number, (leader, _) in enumerate(found)}.items():
        with Connection(brokers[node]) as leader:
            if not leader.is_served(name, number):
                return False
    return True


class IsrWatch:
    """`least` replicas in sync of any partition while the block ran, as one of the brokers tells
    it.
    """

    def __init__(self, address: Address, topic: str) -> None:
        self.least = 1 << 30
        self._address, self._topic = address, topic
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> IsrWatch:
        with Connection(
            self._address
        ) as connection:  # the topic may be made, and this broker not know of it yet
            patiently(
                lambda: bool(connection.describe(self._topic)[1]),
                f"{self._topic} is known to {self._address}",
            )
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join()

    def _look(self) -> None:
        with Connection(self._address) as connection:
            while True:
                self.least = min(
                    [self.least, *(in_sync for _, in_sync in connection.describe(self._topic)[1])]
                )
                if self._enough.wait(_LOOK_SECONDS):
                    return
