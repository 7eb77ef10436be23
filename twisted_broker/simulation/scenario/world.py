"""The world that the steps of one scenario share: production brokers and our controller on the
simulated clock, network and disk.

Owns `ScenarioWorld`: the machines, the controller's committed image, the running of time, pending
client requests, and the log lines since the last step.

1. A scenario runs the same way every time: one seed, equal delays on every connection, calls that
   are due together in the order of scheduling.
2. Time runs only while a step waits; `until` stops at the call that made its condition true.
3. A failure that production code logs fails the scenario.
4. n1 is the controller (and a broker). Scenarios place their topics on the other machines, so that
   these may die without it.

Not here: the form of a line (`language`), what the steps do (`machines`, `topics`, `clients`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT, CONTROLLER_PORT, SimNode
from twisted_broker.simulation.scenario.language import ScenarioError
from twisted_broker.simulation.world import Trace

TIMEOUT_SECONDS = 60.0
# A scenario says itself how long a request waits; none may end by chance.
_REQUEST_TIMEOUT_MS = 3_600_000
_TRAVEL_SECONDS = 0.001


class LogTrace(Trace):
    """What brokers said; not every call."""

    def note(self, now: float, who: str, what: str) -> None:
        if self.wanted and what.startswith("log: "):
            self.lines.append(f"{now:9.3f}       {who}: {what.removeprefix('log: ')}")


class ClientRequest:
    """A request of a client. `answer` is None until it is there."""

    def __init__(self, deferred: Deferred[str]) -> None:
        self.answer: str | None = None
        deferred.addCallbacks(self._answered, self._lost)

    def _answered(self, answer: str) -> None:
        self.answer = answer

    def _lost(self, failure: Failure) -> None:
        """Without an answer: its connection ended. Anything else is a mistake of the scenario."""
        self.answer = f"no answer ({type(failure.value).__name__})"


class ScenarioWorld:
    """Use as a context. `wanted`: keep what happens, to be printed."""

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.requests: dict[str, ClientRequest] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.producers: dict[str, Any] = {}
        """by their names in the scenario; see `transactions`"""
        self._cluster: SimCluster | None = None
        self._client: Any = None

    def __enter__(self) -> ScenarioWorld:
        gc.disable()  # what a dead process left must not run when the collector happens to come by
        return self

    def __exit__(self, *error: object) -> None:
        if self._cluster is not None:
            self._cluster.__exit__(*error)
        gc.enable()

    # the cluster

    def build(
        self, brokers: int, settings: Mapping[str, str], per_broker: Mapping[int, Mapping[str, str]]
    ) -> None:
        """Machines 1..`brokers`; all of them run when it returns."""
        if self._cluster is not None:
            raise ScenarioError("there is a cluster already")
        conditions = NetworkConditions(_TRAVEL_SECONDS, _TRAVEL_SECONDS, dead_after_heal=0.0)
        cluster = self._cluster = SimCluster(0, brokers, settings, conditions, shuffle=False)
        cluster.trace = LogTrace(self.wanted)
        for number, own in per_broker.items():
            node = self.node(number)
            node.settings = {**node.settings, **own}
        for node in cluster.nodes.values():
            node.disk_delay_ms = (1, 1)
            node.clock.skew_ms = node.skew_ms = 0
        cluster.__enter__()
        self._client = cluster.client_runtime("client")
        cluster.start()
        self.until(self._all_unfenced, "all brokers run and are unfenced")

    def _all_unfenced(self) -> bool:
        image = self.image
        return image is not None and all(
            node.ready and node.node_id in image.brokers and not image.brokers[node.node_id].fenced
            for node in self.cluster.nodes.values()
        )

    @property
    def cluster(self) -> SimCluster:
        if self._cluster is None:
            raise ScenarioError("there is no cluster yet: begin with `brokers <count>`")
        return self._cluster

    def node(self, number: int) -> SimNode:
        found = self.cluster.nodes.get(f"n{number}")
        if found is None:
            raise ScenarioError(
                f"there is no broker {number}, only "
                f"{', '.join(name[1:] for name in self.cluster.nodes)}"
            )
        return found

    @property
    def image(self) -> Any:
        """What the controller has committed; None while it does not run."""
        broker = self.node(1).broker
        controller = None if broker is None else broker.parts.controller
        return None if controller is None else controller.committed

    def registration(self, name: TopicPartition) -> Any:
        """A partition as the controller has it; None when there is none, or while the controller
        is down.
        """
        image = self.image
        topic = None if image is None else image.topics_by_name.get(name.topic)
        return None if topic is None else topic.partitions.get(name.partition)

    # time

    @property
    def now(self) -> float:
        return self.cluster.sim.now

    def run(self, seconds: float) -> None:
        self.cluster.run_until(self.now + seconds)

    def until(
        self, condition: Callable[[], bool], what: str, seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Runs to the call that makes it true. Raises `ScenarioError`."""
        end = self.now + seconds
        while not condition():
            if not self.cluster.sim.step(end):
                raise ScenarioError(f"not within {seconds:g} s: {what}")

    def check(self) -> None:
        """Raises `ScenarioError` when the production code logged a failure."""
        if self.cluster.bugs:
            raise ScenarioError(f"a broker failed: {self.cluster.bugs[0]}")

    def new_log_lines(self) -> list[str]:
        """What was noted since the last call."""
        lines, self.cluster.trace.lines = self.cluster.trace.lines, []
        return lines

    # clients

    @property
    def client_clock(self) -> Any:
        """The clock of the machine that all clients run on."""
        return self._client.clock

    def send(self, broker: int, request: Any, version: int) -> Deferred[Any]:
        """A client's request to a broker, over a connection of its own."""
        return self._send(broker, CLIENT_PORT, request, version)

    def send_to_controller(self, request: Any, version: int) -> Deferred[Any]:
        """A request as brokers send it to the controller."""
        return self._send(1, CONTROLLER_PORT, request, version)

    def _send(self, broker: int, port: int, request: Any, version: int) -> Deferred[Any]:
        host = self.node(broker).name
        connection = BrokerConnection(
            self._client,
            host,
            port,
            "scenario",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            connect_timeout_ms=2_000,
        )
        return connection.send(request, version)
