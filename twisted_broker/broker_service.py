"""A broker as a Twisted service: the ready line, the run file, and what happens when it cannot go
on.

1. Ready is said when clients are let in, once: `replog node 1 ready on HOST:PORT`.
2. A start that fails, or an end that nobody requested, is one line on the log, and the process
   leaves with status 1.
3. The first SIGTERM or SIGINT begins an orderly stop; another one ends the wait for the controller
   (`KafkaServer.skip_controlled_shutdown`): leaderships not moved yet stay, and the logs are still
   closed cleanly.

Source: `twisted.application.service`. Not here: options (`tap.py`), the parts of a broker
(`kafka_server.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config_validation import warnings_for
from twisted_broker.exit_status import leave_with_failure
from twisted_broker.installed import how_it_runs
from twisted_broker.interfaces import Runtime
from twisted_broker.server.kafka_server import STARTING_ERRORS, KafkaServer
from twisted_broker.settings import INT_MAX
from twisted_broker.start_checks import open_directories
from twisted_broker.status.http_server import StatusPort
from twisted_broker.status.run_file import (
    broker_entry,
    remove_run_file,
    remove_stale_run_file,
    write_run_file,
)

_logger = Logger(namespace="replog")


class BrokerService(Service):
    """A broker as `twistd` starts and stops it.

    A start that fails is one line on the log and exit status 1.
    """

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        *,
        cluster_id: str | None = None,
        run_file: str | None = None,
        reactor: Any,
        descriptors: int = INT_MAX,
        on_stop_again: Callable[[Callable[[], None]], None] = lambda skip_controlled_shutdown: None,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`descriptors`: how many this process may open.

        `on_stop_again(skip_controlled_shutdown)`: once it stops, the process calls
        `skip_controlled_shutdown` at every further request to stop.
        """
        self.config = config
        self.runtime = runtime
        self.broker: KafkaServer | None = None
        self._cluster_id = cluster_id
        self._run_file = run_file
        self._descriptors = descriptors
        self._on_stop_again = on_stop_again
        self._when_ready = when_ready
        self._reactor = reactor
        self._starting: Deferred[None] | None = None
        self._stopping = False
        self._status_ports: dict[KafkaServer, StatusPort] = {}

    @property
    def who(self) -> str:
        """What stops when it stops."""
        return f"node {self.config.node_id}"

    def startService(self) -> None:
        Service.startService(self)
        if self._run_file is not None:
            remove_stale_run_file(self._run_file)
        self._starting = ensureDeferred(self._start())

    def _log_settings(self) -> None:
        for name in self.config.unknown():
            _logger.warn("unknown setting {name} is ignored", name=name)
        for words in warnings_for(self.config):
            _logger.warn("{words}", words=words)
        if self.config.without_effect():
            _logger.info(
                "settings that have no effect in this broker: {names}",
                names=", ".join(self.config.without_effect()),
            )

    async def _start(self) -> None:
        _logger.info(
            "replog node {node} starts: {how}", node=self.config.node_id, how=how_it_runs()
        )
        self._log_settings()
        try:
            self.broker = KafkaServer(
                self.config, self.runtime, self._cluster_id, self._descriptors, self._fail
            )
            await self._start_broker(self.broker)
            self._when_ready()
            self._announce()
        except STARTING_ERRORS as error:
            self._fail(str(error))
        except Exception:
            _logger.failure("the broker cannot start")
            self._fail("the broker cannot start")

    async def _start_broker(self, broker: KafkaServer) -> None:
        """Its status port is open from the beginning, and to the end (`_stop_broker`)."""
        number = broker.config.integer("replog.status.port")
        port = StatusPort(
            broker.runtime, lambda: broker.parts, broker.bound_routes, number, broker.health
        )
        self._status_ports[broker] = port
        for words in open_directories(broker.config):
            _logger.warn("{words}", words=words)
        await port.open()
        for _ in broker.load_steps():
            await deferLater(broker.runtime.clock, 0)  # type: ignore[arg-type]
        await broker.start()
        broker.log_manager.free_space.start()

    async def _stop_broker(self, broker: KafkaServer) -> None:
        await broker.stop()
        _logger.info("replog node {node} stopped", node=broker.config.node_id)
        if broker in self._status_ports:
            await self._status_ports.pop(broker).close()

    def _entry(self, broker: KafkaServer) -> dict[str, Any]:
        """What the run file says of it."""
        listeners = {each.name: each.address for each in broker.listeners}
        return broker_entry(
            listeners, broker.config.log_directories[0], self._status_ports[broker].address
        )

    def ready_entry(self) -> dict[str, Any]:
        """What a run file of several processes needs of this one, which is ready."""
        assert self.broker is not None
        listeners = self.broker.listeners
        return {
            "cluster_id": self.broker.cluster_id,
            "client": next(each.address for each in listeners if not each.is_controller),
            "controller": next((each.address for each in listeners if each.is_controller), None),
            "entry": self._entry(self.broker),
        }

    def _announce(self) -> None:
        """The ready line and the run file."""
        assert self.broker is not None
        clients = [each for each in self.broker.listeners if not each.is_controller]
        controllers = [each for each in self.broker.listeners if each.is_controller]
        first = (clients or controllers)[0]
        if self._run_file is not None:
            write_run_file(
                self._run_file,
                self.broker.cluster_id,
                clients[0].address if clients else "",
                controllers[0].address if controllers else None,
                {self.config.node_id: self._entry(self.broker)},
            )
        _logger.info(
            "replog node {node} ready on {address}", node=self.config.node_id, address=first.address
        )

    def _fail(self, reason: str) -> None:
        if self._stopping:
            return  # what was waited for at the start was given up for the stop
        _logger.critical("replog {who} stops: {reason}", who=self.who, reason=reason)
        leave_with_failure(self._reactor)

    async def _stop(self) -> None:
        if self._run_file is not None:
            remove_run_file(self._run_file)
        if self.broker is not None:
            await self._stop_broker(self.broker)

    def skip_controlled_shutdown(self) -> None:
        """A further request to stop."""
        if self.broker is not None:
            self.broker.skip_controlled_shutdown()

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        self._stopping = True
        self._on_stop_again(self.skip_controlled_shutdown)
        return ensureDeferred(self._stop())
