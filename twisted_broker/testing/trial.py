"""A Kafka cluster in the reactor of a test: for Twisted's trial, and for pytest-twisted.

Owns `Cluster`, with the names of `twisted_broker.testing.Cluster`; what those return is awaited
here. No process is started: a test that holds the reactor holds the brokers.

Ring 2. Source: our own. Not here: what a cluster is (`cluster.py`), what is awaited of it
(`awaited.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from twisted_broker.testing.cluster import start_arguments
from twisted_broker.testing.here import ClusterHere
from twisted_broker.testing.running_cluster import RunningCluster


class Cluster(ClusterHere):
    """`await cluster.start()` in a test's set-up, `cluster.stop` as its clean-up; or `async with`.
    After the stop no port, timer or thread is left: trial finds a clean reactor.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        data: str | os.PathLike[str] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(RunningCluster(**start_arguments(brokers, settings, topics, data, seed)))

    async def start(self) -> Cluster:
        """Ends when clients are served. Raises StartError."""
        try:
            await self._running.start()
        except BaseException:
            await self._running.stop()
            raise
        return self

    async def stop(self) -> None:
        """Ends when nothing of it is left."""
        await self._running.stop()

    async def __aenter__(self) -> Cluster:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
