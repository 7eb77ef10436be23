"""The brokers of a test's cluster, in the process and the reactor of the caller.

Owns `RunningCluster`: their settings, start and stop, together and one by one.

1. Topics have as many replicas as there are brokers, three at most, unless a setting says
   otherwise.
2. It is ready when every broker serves clients and the topics are there.
3. Several brokers have a controller of its own beside them, node 100, which no test stops: any of
   them may be stopped. One alone is its controller, too.
4. A broker that is stopped keeps its world: its files, also in memory, and its port, which a socket
   that does not listen holds for it meanwhile. Clients are refused there.
5. Stop and restart of one end when every broker that runs knows it and leads what it should.

Not here: the unclean death of one. Brokers of one process share its reactor and its threads:
nothing takes those of one away at a moment, as the end of a process does.

Ring 2. Source: our own. Not here: what is asked of it (`cluster_calls.py`).
"""

from __future__ import annotations

import dataclasses
import posixpath
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater

from twisted_broker.broker import STARTING_ERRORS, Broker
from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.reactor_watch import ReactorWatch
from twisted_broker.start_checks import StartError
from twisted_broker.tap import MEMORY, MonotonicClock, Options, file_limit, production_runtime
from twisted_broker.testing.cluster_calls import CallFailed, ClusterCalls
from twisted_broker.testing.condition_values import out_of_isr, unsettled

_MOST_REPLICAS = 3
_CONTROLLER_NODE = 100
_PAUSE_SECONDS = 0.005


class _Brokers(LocalCluster):
    """`on_failure(reason)`: they cannot start, or go on."""

    def __init__(self, on_failure: Callable[[str], None], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._on_failure = on_failure

    def _fail(self, reason: str) -> None:
        self._on_failure(reason)

    def runs(self, broker: Broker) -> bool:
        return broker not in self._ended

    async def leave(self, broker: Broker) -> None:
        """Stops it in order."""
        self._ended[broker] = ensureDeferred(self._stop_broker(broker))
        await self._ended[broker]

    async def come_back(self, broker: Broker) -> None:
        """Starts it again, after `leave`. Raises one of STARTING_ERRORS."""
        index = self.brokers.index(broker)
        config = BrokerConfig({**broker.config.static, "listeners": _bound(broker)})
        fail = partial(self._fail_one, index)
        again = Broker(config, broker.runtime, self._cluster_id, self._descriptors, fail)
        self.brokers[index], self._ended[again] = again, succeed(None)
        try:
            await self._start_one(again)
        except BaseException:
            await self._stop_broker(again)
            self.brokers[index] = broker  # which knows its ports, for the next attempt
            raise
        finally:
            del self._ended[again]


def _bound(broker: Broker) -> str:
    """Its listeners, on the ports that it had."""
    ports = {each.name: each.port for each in broker.listeners}
    given = parse_endpoints("listeners", broker.config.names("listeners"))
    return ",".join(str(each._replace(port=ports[each.name])) for each in given)


def _with_controller(configs: list[BrokerConfig]) -> list[BrokerConfig]:
    """With one more, the first: the controller that was node 1's."""
    first = dict(configs[0].static)
    names = {each.upper() for each in configs[0].names("controller.listener.names")}
    listeners = parse_endpoints("listeners", configs[0].names("listeners"))
    controller = first | {
        "node.id": str(_CONTROLLER_NODE),
        "process.roles": "controller",
        "listeners": ",".join(str(each) for each in listeners if each.name in names),
        "replog.status.port": "-1",
    }
    for name in ("advertised.listeners", "broker.id"):
        controller.pop(name, None)
    for name in ("log.dirs", "metadata.log.dir"):
        if name in first:
            homes = [posixpath.dirname(each) for each in first[name].split(",")]
            controller[name] = ",".join(posixpath.join(home, "controller") for home in homes)
    first["process.roles"] = "broker"
    first["listeners"] = ",".join(str(each) for each in listeners if each.name not in names)
    return [BrokerConfig(controller), BrokerConfig(first), *configs[1:]]


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
        options.settings = {
            "default.replication.factor": replicas,
            # A controlled shutdown ends with a heartbeat: Kafka's 2 s would be a test's, too.
            "broker.heartbeat.interval.ms": "200",
            **(settings or {}),
        }
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
        self._held: dict[int, list[socket.socket]] = {}
        self._running: list[Broker] = []
        configs = options.broker_configs
        from twisted.internet import reactor

        self._service = _Brokers(
            self._fail,
            configs if brokers == 1 else _with_controller(configs),
            partial(self._runtime, reactor),
            reactor=reactor,
            descriptors=file_limit(reactor),
            when_ready=partial(self._ready.callback, None),
        )
        self._calls: ClusterCalls | None = None

    def _runtime(self, reactor: Any, config: BrokerConfig) -> Runtime:
        watch = ReactorWatch(0)
        made = production_runtime(reactor, config, watch, in_memory=self._is_in_memory)
        self._runtimes.append(dataclasses.replace(made, clock=MonotonicClock(reactor)))
        return self._runtimes[-1]

    def _fail(self, reason: str) -> None:
        self._failed = reason
        if not self._ready.called:
            self._ready.errback(StartError(reason))

    async def start(self) -> None:
        """Ends when it serves clients and has its topics. Raises StartError."""
        self._service.startService()
        await self._ready
        self._note_running()
        self.ids = sorted(each.config.node_id for each in self._running)
        self._calls = ClusterCalls(self._running, self._service.runtime)
        for name, partitions in self._topics.items():
            await self._calls.make_topic(name, partitions)

    @property
    def calls(self) -> ClusterCalls:
        """Raises CallFailed once it cannot go on."""
        assert self._calls is not None, "start comes first"
        if self._failed:
            raise CallFailed(f"the cluster stopped: {self._failed}")
        return self._calls

    def _note_running(self) -> None:
        self._running[:] = [
            each
            for each in self._service.brokers
            if "broker" in each.roles and self._service.runs(each)
        ]

    async def stop(self) -> None:
        """In order: files are closed as after a clean shutdown, and nothing is left behind."""
        if self._calls is not None:
            self._calls.close()
        await self._service.stopService()
        for node in [*self._held]:
            self._let_go(node)
        for runtime in self._runtimes:
            network: Any = runtime.network
            await network.close()

    # one broker

    def _broker(self, node: int) -> Broker:
        if node not in self.ids:
            raise CallFailed(f"there is no broker {node}: {', '.join(map(str, self.ids))}")
        return next(each for each in self._service.brokers if each.config.node_id == node)

    async def stop_broker(self, node: int, within: float = 30.0) -> None:
        """In order: what it led is led by others, where they can. Nothing for one that is stopped.
        Raises CallFailed, TimeoutError.
        """
        broker = self._broker(node)
        if not self._service.runs(broker):
            return
        self._running.remove(broker)
        await self._service.leave(broker)
        self._held[node] = [_holding(each.host, each.port) for each in broker.listeners]

        def lacks() -> str:
            for each in self._running:
                known = _image(each).brokers.get(node)
                if known is not None and not known.fenced:
                    return f"broker {each.config.node_id} takes broker {node} for running"
            return unsettled(self._running)

        await self._until(lacks, within)

    async def restart_broker(self, node: int, within: float = 30.0) -> None:
        """Stops it, where it runs, and starts it with its id, port and files; ends when it is in
        the ISRs again, where there is a leader that can take it. Raises CallFailed, TimeoutError.
        """
        await self.stop_broker(node, within)
        self._let_go(node)
        try:
            await self._service.come_back(self._broker(node))
        except STARTING_ERRORS as error:
            raise CallFailed(f"broker {node} does not start again: {error}") from None
        self._note_running()
        role = self._broker(node).role
        assert role is not None
        epoch = role.lifecycle.broker_epoch

        def lacks() -> str:
            for each in self._running:
                known = _image(each).brokers.get(node)
                if known is None or known.fenced or known.epoch != epoch:
                    return f"broker {each.config.node_id} does not know that broker {node} runs"
                out = out_of_isr(_image(each), node)
                if out is not None:
                    return f"broker {node} is not in the ISR of {out}"
            return unsettled(self._running)

        await self._until(lacks, within)

    async def _until(self, lacks: Callable[[], str], within: float) -> None:
        clock = self._service.runtime.clock
        deadline = clock.seconds() + within
        while lack := lacks():
            if clock.seconds() >= deadline:
                raise TimeoutError(f"{lack} after {within:g} s")
            await deferLater(clock, _PAUSE_SECONDS)  # type: ignore[arg-type]

    def _let_go(self, node: int) -> None:
        for each in self._held.pop(node, ()):
            each.close()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises CallFailed, TimeoutError."""
        own = {"stop_broker": self.stop_broker, "restart_broker": self.restart_broker}
        found: Callable[..., Any] = own.get(name) or getattr(self.calls, name)
        return await found(**arguments)


def _image(broker: Broker) -> Any:
    assert broker.role is not None
    return broker.role.observer.image


def _holding(host: str, port: int) -> socket.socket:
    """Nobody else gets the port; who connects is refused."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made
