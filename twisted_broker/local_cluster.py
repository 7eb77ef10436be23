"""Several brokers in one process: `twistd replog --brokers 3`.

Owns what differs between them, and the order in which they start and stop.

1. Ids 1 to N, ports P to P+N-1 (free ones for 0; the status ports likewise), directories
   `broker-<id>` under the given ones; node 1 is the controller too.
2. They talk over real TCP, as brokers on several machines do; nothing is shared but the process.
3. Node 1 starts first, the others together. Ready means all are; then one line says how topics get
   several replicas, where they would get one.
4. Their controlled shutdowns run side by side, so that none waits for a broker that stops too; then
   the others stop, and node 1 with the controller last.
5. Once all are ready, a broker that cannot go on ends alone, in order: one line, and the run file
   without it. Of node 1 the controller goes on. The process ends with the last broker, or when the
   controller's disk fails: without it none of them can elect a leader or change an ISR.

Ring 2. Source: our own. Not here: one broker's parts
(`kafka_server.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_service import BrokerService
from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.java_numbers import is_digits
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.server.kafka_server import STARTING_ERRORS, KafkaServer
from twisted_broker.settings import INT_MAX, ConfigError
from twisted_broker.status.run_file import remove_run_file, write_run_file

_logger = Logger(namespace="replog")
CONTROLLER_NODE = 1
_MOST_PORT = 65535
_STATUS_PORT = "replog.status.port"


def node_settings(values: Mapping[str, str], node_id: int) -> dict[str, str]:
    """The settings of one node out of those given for all. Raises ConfigError."""
    own = dict(values)
    own["node.id"] = str(node_id)
    own["process.roles"] = "broker,controller" if node_id == CONTROLLER_NODE else "broker"
    own["log.dirs"] = ",".join(
        posixpath.join(path, f"broker-{node_id}")
        for path in _listed(values.get("log.dirs") or values["log.dir"])
    )
    if "metadata.log.dir" in values:
        own["metadata.log.dir"] = posixpath.join(values["metadata.log.dir"], f"broker-{node_id}")
    controllers = {
        name.upper() for name in _listed(values.get("controller.listener.names", "CONTROLLER"))
    }
    status_port = values.get(_STATUS_PORT, "")
    if is_digits(status_port) and int(status_port):
        own[_STATUS_PORT] = str(int(status_port) + node_id - 1)
    for name in ("listeners", "advertised.listeners"):
        if name in values:
            own[name] = ",".join(_shifted(name, values[name], node_id, controllers))
    return own


def check_shared_roles(values: Mapping[str, str]) -> None:
    """Raises ConfigError for roles that several brokers of one process cannot share."""
    roles = values.get("process.roles", "broker,controller")
    if set(_listed(roles)) != {"broker", "controller"}:
        raise ConfigError(
            "process.roles",
            roles,
            (
                "broker,controller (the default) with several --brokers: node 1 is the "
                "controller, too"
            ),
        )


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _shifted(setting: str, text: str, node_id: int, controllers: set[str]) -> list[str]:
    """Each broker's listener on a port of its own; the controller's on its node only."""
    found = []
    for each in parse_endpoints(setting, _listed(text)):
        if each.name in controllers:
            if node_id == CONTROLLER_NODE:
                found.append(str(each))
            continue
        port = each.port + node_id - 1 if each.port else 0
        if port > _MOST_PORT:
            raise ConfigError(setting, str(each), f"a lower port: node {node_id} would need {port}")
        found.append(str(each._replace(port=port)))
    return found


def replication_hint(config: BrokerConfig, brokers: int) -> str:
    """How a topic gets several replicas; empty where it does anyway."""
    if brokers < 2 or config.integer("default.replication.factor") > 1:
        return ""
    most = min(3, brokers)
    return (
        "topics have one replica, as in Kafka, unless they are created with more (up to "
        f"{brokers}); "
        f"--set default.replication.factor={most} makes {most} the default, also for topics "
        "that are created automatically"
    )


class LocalCluster(BrokerService):
    """`configs`: of each node, node 1 first; `make_runtime(config)` makes the world of one."""

    def __init__(
        self,
        configs: list[BrokerConfig],
        make_runtime: Callable[[BrokerConfig], Runtime],
        *,
        cluster_id: str | None = None,
        run_file: str | None = None,
        reactor: Any,
        descriptors: int = INT_MAX,
        on_stop_again: Callable[[Callable[[], None]], None] = lambda skip_controlled_shutdown: None,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        runtime = make_runtime(configs[0])
        super().__init__(
            configs[0],
            runtime,
            cluster_id=cluster_id,
            run_file=run_file,
            reactor=reactor,
            descriptors=descriptors // len(configs),
            on_stop_again=on_stop_again,
            when_ready=when_ready,
        )
        self.brokers: list[KafkaServer] = []
        self._ended: dict[KafkaServer, Deferred[None]] = {}
        self._is_ready = False
        self._configs = configs
        self._make_runtime = make_runtime

    @property
    def who(self) -> str:
        return f"nodes 1 to {len(self._configs)}"

    async def _start(self) -> None:
        self._log_settings()
        try:
            await self._start_all()
            self._is_ready = True
            self._when_ready()
            self._announce()
        except STARTING_ERRORS as error:
            self._fail(str(error))
        except Exception:
            _logger.failure("the brokers cannot start")
            self._fail("the brokers cannot start")

    async def _start_all(self) -> None:
        first = self._make(self._configs[0], self.runtime)
        await self._start_broker(first)
        self._log_ready(first)
        controllers = ",".join(each.address for each in first.listeners if each.is_controller)
        others = []
        for config in self._configs[1:]:
            own = BrokerConfig(
                {**config.static, "controller.quorum.bootstrap.servers": controllers}
            )
            others.append(self._make(own, self._make_runtime(own)))
        await _side_by_side(self._start_one(broker) for broker in others)

    async def _start_one(self, broker: KafkaServer) -> None:
        await self._start_broker(broker)
        self._log_ready(broker)

    def _make(self, config: BrokerConfig, runtime: Runtime) -> KafkaServer:
        fail = partial(self._fail_one, len(self.brokers))
        broker = KafkaServer(config, runtime, self._cluster_id, self._descriptors, fail)
        self.brokers.append(broker)
        return broker

    def _log_ready(self, broker: KafkaServer) -> None:
        clients = [each for each in broker.listeners if not each.is_controller]
        first = (clients or broker.listeners)[0]
        _logger.info(
            "replog node {node} ready on {address}",
            node=broker.config.node_id,
            address=first.address,
        )

    def _announce(self) -> None:
        hint = replication_hint(self.config, len(self.brokers))
        if hint:
            _logger.info("{hint}", hint=hint)
        self._write_run_file()

    def _write_run_file(self) -> None:
        """Of the brokers that serve. Raises OSError."""
        if self._run_file is None:
            return
        serving = self._serving()
        clients = [
            next(each.address for each in broker.listeners if not each.is_controller)
            for broker in serving
        ]
        controller = next(each.address for each in self.brokers[0].listeners if each.is_controller)
        entries = {broker.config.node_id: self._entry(broker) for broker in serving}
        write_run_file(
            self._run_file, self.brokers[0].cluster_id, ",".join(clients), controller, entries
        )

    # one that cannot go on

    def _serving(self) -> list[KafkaServer]:
        return [broker for broker in self.brokers if broker not in self._ended]

    def _fail_one(self, index: int, reason: str) -> None:
        broker = self.brokers[index]
        if self._stopping or broker in self._ended:
            return
        if not self._is_ready or not self.brokers[0].has_controller:
            self._fail(reason)
            return
        self._ended[broker] = ensureDeferred(self._end(broker))
        node, left = broker.config.node_id, self._serving()
        if not left:
            self._fail(f"no broker is left, node {node} is the last: {reason}")
            return
        _logger.critical(
            "replog node {node} stops{but}: {reason}; {left} left",
            node=node,
            but=", its controller goes on" if broker.has_controller else "",
            reason=reason,
            left=_named(left),
        )

    async def _end(self, broker: KafkaServer) -> None:
        # Not within the call that found the failure: it may be in the middle of a log.
        await deferLater(self.runtime.clock, 0)  # type: ignore[arg-type]
        if not self._stopping:
            try:
                self._write_run_file()
            except OSError as error:
                _logger.warn("the run file still names it: {error}", error=error)
        if broker.has_controller:
            await broker.stop_broker_role()
        else:
            await self._stop_broker(broker)

    def _skip_controlled_shutdown(self) -> None:
        for broker in self.brokers:
            broker.skip_controlled_shutdown()

    async def _stop(self) -> None:
        if self._run_file is not None:
            remove_run_file(self._run_file)
        serving = self._serving()
        await _side_by_side(
            [*(broker.controlled_shutdown() for broker in serving), *self._ended.values()]
        )
        await _side_by_side(
            self._stop_broker(broker) for broker in serving if broker is not self.brokers[0]
        )
        await _side_by_side(self._stop_broker(broker) for broker in self.brokers[:1])


def _named(brokers: list[KafkaServer]) -> str:
    ids = [str(broker.config.node_id) for broker in brokers]
    return f"node {ids[0]} is" if len(ids) == 1 else f"nodes {', '.join(ids)} are"


async def _side_by_side(work: Iterable[Coroutine[Any, Any, None] | Deferred[None]]) -> None:
    """Ends when all have; raises the first failure then."""
    for _, result in await DeferredList(
        [ensureDeferred(each) for each in work], consumeErrors=True
    ):
        if isinstance(result, Failure):
            result.raiseException()
