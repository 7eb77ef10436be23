"""The parts that clusters in the caller's process share: `trial.Cluster`, and that of a simulated
run.

Owns `ClusterHere`.

Ring 2. Source: our own. Not here: how a call is awaited (`trial.py`, `simulated/cluster.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from twisted_broker.testing.awaited import AwaitedCluster
from twisted_broker.testing.handles import Call
from twisted_broker.testing.in_force import with_line
from twisted_broker.testing.running_cluster import RunningCluster


class ClusterHere(AwaitedCluster):
    """`running`: its brokers."""

    def __init__(self, running: RunningCluster) -> None:
        self._running = running

    def __str__(self) -> str:
        return self.bootstrap

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of each broker, with commas."""
        return self._running.calls.bootstrap

    @property
    def brokers(self) -> list[int]:
        """Their ids."""
        return self._running.ids

    @property
    def _call(self) -> Call[Any]:
        return self._called

    @property
    def _ids(self) -> list[int]:
        return self.brokers

    def _called(self, name: str, /, **arguments: Any) -> Awaitable[Any]:
        return self._running.call(name, with_line(name, arguments))
