"""Several brokers in one process: `twistd replog --brokers 3`.

Owns what differs between them, and the order in which they start and stop.

1. Their settings are those of `local_nodes.py`; which are controllers, of `local_quorum.py`.
2. They talk over real TCP, as brokers on several machines do; nothing is shared but the process.
3. All start together; the only controller before the others. Ready means all are; then one line
   says how topics get several replicas, where they would get one.
4. Their controlled shutdowns run side by side, so that none waits for a broker that stops too; then
   the others stop, and the controllers last, without a hand-over.
5. Once all are ready, a broker that cannot go on ends alone, in order: one line, and the run file
   without it. Its controller goes on, where it can. The process ends with the last broker, or when
   no majority of the controllers is left: without it none can elect a leader or change an ISR.

Ring 2. Source: our own. Not here: one broker's parts (`kafka_server.py`), a process for each broker
(`process_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, FirstError, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.broker_service import BrokerService
from twisted_broker.interfaces import Runtime
from twisted_broker.local_nodes import replication_hint
from twisted_broker.local_quorum import (
    ONE_CONTROLLER,
    format_quorum,
    has_lone_controller,
    is_controller,
)
from twisted_broker.server.kafka_server import STARTING_ERRORS, KafkaServer
from twisted_broker.settings import INT_MAX
from twisted_broker.status.run_file import remove_run_file, write_run_file

_logger = Logger(namespace="replog")


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
        if sum(map(is_controller, self._configs)) > 1:
            await self._start_quorum()
            return
        if has_lone_controller(self._configs):
            _logger.warn(ONE_CONTROLLER)
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

    async def _start_quorum(self) -> None:
        """None is ready before a majority of the controllers has started."""
        first, *others = self._configs
        runtimes = {first: self.runtime} | {each: self._make_runtime(each) for each in others}
        format_quorum(
            self._configs,
            lambda config: runtimes[config].files,
            self._cluster_id,
            self.runtime.random,
        )
        brokers = [self._make(config, runtimes[config]) for config in self._configs]
        starts = [ensureDeferred(self._start_one(each)) for each in brokers]
        try:  # the others may wait for the one that cannot start
            await DeferredList(starts, fireOnOneErrback=True, consumeErrors=True)
        except FirstError as error:
            error.subFailure.raiseException()

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
        controllers = ",".join(
            each.address
            for broker in self.brokers
            for each in broker.listeners
            if each.is_controller and broker.has_controller
        )
        entries = {broker.config.node_id: self._entry(broker) for broker in serving}
        write_run_file(
            self._run_file, self.brokers[0].cluster_id, ",".join(clients), controllers, entries
        )

    # one that cannot go on

    def _serving(self) -> list[KafkaServer]:
        return [broker for broker in self.brokers if broker not in self._ended]

    def _fail_one(self, index: int, reason: str) -> None:
        broker = self.brokers[index]
        if self._stopping:
            return
        if not self._is_ready or not self._can_elect():
            self._fail(reason)
            return
        if broker in self._ended:
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

    def _can_elect(self) -> bool:
        """Whether a majority of the controllers is left."""
        left = sum(each.has_controller for each in self.brokers)
        return 2 * left > sum(map(is_controller, self._configs))

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

    def skip_controlled_shutdown(self) -> None:
        """A further request to stop."""
        for broker in self.brokers:
            broker.skip_controlled_shutdown()

    async def _stop(self) -> None:
        if self._run_file is not None:
            remove_run_file(self._run_file)
        serving = self._serving()
        await _side_by_side(
            [*(broker.controlled_shutdown() for broker in serving), *self._ended.values()]
        )
        others = [each for each in serving if not each.has_controller]
        await _side_by_side(self._stop_broker(each) for each in others)
        controllers = [each for each in self.brokers if each in self._status_ports]
        for each in controllers:
            each.skip_controlled_shutdown()
        await _side_by_side(self._stop_broker(each) for each in controllers)


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
