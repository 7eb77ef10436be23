"""The brokers of a test's cluster, in the process and the reactor of the caller.

Owns `RunningCluster`: their settings, start and stop.

1. Topics have as many replicas as there are brokers, three at most, unless a setting says
   otherwise.
2. It is ready when every broker serves clients and the topics are there.

Ring 2. Source: our own. Not here: what is asked of it (`cluster_calls.py`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster
from twisted_broker.reactor_watch import ReactorWatch
from twisted_broker.start_checks import StartError
from twisted_broker.tap import MEMORY, Options, file_limit, production_runtime
from twisted_broker.testing.cluster_calls import CallFailed, ClusterCalls

_MOST_REPLICAS = 3


class _MonotonicClock:
    """The reactor's timers; no step of the calendar moves them."""

    def __init__(self, reactor: Any) -> None:
        self.seconds, self.callLater = time.monotonic, reactor.callLater


class _Brokers(LocalCluster):
    """`on_failure(reason)`: they cannot start, or go on."""

    def __init__(self, on_failure: Callable[[str], None], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._on_failure = on_failure

    def _fail(self, reason: str) -> None:
        self._on_failure(reason)


class RunningCluster:
    """`brokers` of them; `settings` of Kafka, for all; `data`: their directory, None for memory;
    `topics`: names, and how many partitions of each. Raises StartError.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        data: str | None = None,
        topics: Mapping[str, int] | None = None,
    ) -> None:
        options = Options()
        replicas = str(min(brokers, _MOST_REPLICAS))
        options.settings = {"default.replication.factor": replicas, **(settings or {})}
        arguments = ["--port", "0", "--brokers", str(brokers), "--data", data or MEMORY]
        try:
            options.parseOptions(arguments)
        except SystemExit as error:
            raise StartError(str(error).removeprefix("replog: ")) from None
        self._topics = dict(topics or {})
        self._ready: Deferred[None] = Deferred()
        self._failed = ""
        self._runtimes: list[Runtime] = []
        self._is_in_memory = data is None
        from twisted.internet import reactor

        self._service = _Brokers(
            self._fail,
            options.broker_configs,
            partial(self._runtime, reactor),
            reactor=reactor,
            descriptors=file_limit(reactor),
            when_ready=partial(self._ready.callback, None),
        )
        self._calls: ClusterCalls | None = None

    def _runtime(self, reactor: Any, config: BrokerConfig) -> Runtime:
        watch = ReactorWatch(0)
        made = production_runtime(reactor, config, watch, in_memory=self._is_in_memory)
        self._runtimes.append(dataclasses.replace(made, clock=_MonotonicClock(reactor)))
        return self._runtimes[-1]

    def _fail(self, reason: str) -> None:
        self._failed = reason
        if not self._ready.called:
            self._ready.errback(StartError(reason))

    async def start(self) -> None:
        """Ends when it serves clients and has its topics. Raises StartError."""
        self._service.startService()
        await self._ready
        self._calls = ClusterCalls(self._service.brokers, self._service.runtime)
        for name, partitions in self._topics.items():
            await self._calls.make_topic(name, partitions)

    @property
    def calls(self) -> ClusterCalls:
        """Raises CallFailed once it cannot go on."""
        assert self._calls is not None, "start comes first"
        if self._failed:
            raise CallFailed(f"the cluster stopped: {self._failed}")
        return self._calls

    @property
    def ids(self) -> list[int]:
        return [each.config.node_id for each in self._service.brokers]

    async def stop(self) -> None:
        """In order: files are closed as after a clean shutdown, and nothing is left behind."""
        if self._calls is not None:
            self._calls.close()
        await self._service.stopService()
        for runtime in self._runtimes:
            network: Any = runtime.network
            await network.close()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises CallFailed, TimeoutError."""
        found: Callable[..., Any] = getattr(self.calls, name)
        return await found(**arguments)
