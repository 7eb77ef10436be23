"""A broker inside another program: the public class `twisted_broker.Broker`.

Owns what such a program may rely on: its signatures and what they raise.

1. It changes nothing of the process: no signal handler, no limit, no setting of the garbage
   collector, no file outside `data`.
2. No reactor is made by an import. The first start takes the program's; within an asyncio task
   of a program without one it makes that of the running loop.
3. `start` ends when clients are served; or it raises StartError, one line, and has given back all
   that it took.
4. `stop` is allowed at any time and any number of times. Afterwards no port, timer or thread of
   the broker is left.
5. A broker that cannot go on (every log directory failed, say) stops itself; `on_failure` is called
   once with the reason, one line, unless a `start` that waits raises it.
6. Brokers of one process share the reactor and nothing else.

Ring 2. Source: our own; `twisted.application.service`. Not here: `twistd`'s options (`tap.py`);
a broker in a process of its own, for programs without a reactor (README).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.broker_service import BrokerService
from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.start_checks import StartError

if TYPE_CHECKING:
    from twisted_broker.net.listeners import Listener
    from twisted_broker.server.kafka_server import KafkaServer

__all__ = ["Broker", "StartError"]

_SHARE = 4
"""A broker uses this part of the descriptors that the process may open: the program needs some,
other brokers too.
"""
_logger = Logger(namespace="replog")
_Own = TypeVar("_Own", bound="Broker")


class Broker(Service):
    """A Kafka broker, and its controller, in this process; stable, as is `StartError`.

    `settings`: Kafka's names; text, numbers and bools. `data`: the directory of its files; None
    keeps all in memory. `host`, `port`: where clients connect; by default a free port of
    127.0.0.1. Instead of `data`, `settings` may have `log.dirs`; instead of `host` and `port`,
    `listeners`. `on_failure(reason)`: it stopped by itself.

    Use it as an asynchronous context manager, by `start` and `stop`, or as a Twisted service. After
    a stop it may be started again: with `data` it has what it had.

    StartError: a setting is wrong, or two contradict each other.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        host: str | None = None,
        port: int | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        texts = {name: _text(name, value) for name, value in (settings or {}).items()}
        self._options = _options(texts, data, host, port)
        self._on_failure = on_failure
        self._node: _Node | None = None

    async def start(self) -> None:
        """Ends when clients are served. Of a broker that is started: waits for the same.

        StartError: it cannot start (a port is taken, a directory in use), or was stopped.
        """
        node = self._node or _Node(self._options, self._ended)
        try:
            ready = node.ready.wait()
            self._begin(node)
            await _for_caller(ready)
        except BaseException:  # cancelled, too: nobody would stop it
            self.stopService()
            raise

    async def stop(self) -> None:
        """Ends when it has stopped, its files closed as after a clean shutdown."""
        await _for_caller(self.stopService())

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients: what they call bootstrap servers. "" for a controller only.

        Raises RuntimeError while it does not run; so do the other addresses.
        """
        return next((each.address for each in self._listeners() if not each.is_controller), "")

    @property
    def controller(self) -> str | None:
        """HOST:PORT of its controller: `controller.quorum.bootstrap.servers` of other brokers.
        None for a broker without one.
        """
        return next((each.address for each in self._listeners() if each.is_controller), None)

    @property
    def listeners(self) -> dict[str, str]:
        """Name of each listener -> HOST:PORT, as advertised."""
        return {each.name: each.address for each in self._listeners()}

    @property
    def status(self) -> str | None:
        """HOST:PORT of the page, the metrics and the explanations over HTTP; None without
        (`replog.status.port=-1`).
        """
        return self._running_node().status_address

    @property
    def cluster_id(self) -> str:
        """The cluster that it belongs to."""
        return self._running_node().started().cluster_id

    async def __aenter__(self: _Own) -> _Own:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def startService(self) -> None:
        """As a service; a start that fails is one line of the log, and `on_failure`."""
        if self._node is None:
            self._begin(_Node(self._options, self._ended))

    def _begin(self, node: _Node) -> None:
        if self._node is None:
            self._node = node
            Service.startService(self)
            node.startService()

    def stopService(self) -> Deferred[None]:
        """Fires when it has stopped."""
        return succeed(None) if self._node is None else self._node.end("it was stopped")

    def _ended(self, reason: str | None) -> None:
        """`reason`: why, where nobody else is given it."""
        self._node = None
        if self.running:
            Service.stopService(self)
        if reason is not None:
            _logger.critical("the broker stopped: {reason}", reason=reason)
            if self._on_failure is not None:
                self._on_failure(reason)

    def _running_node(self) -> _Node:
        if self._node is None or not self._node.is_ready:
            raise RuntimeError("the broker does not run: start it first")
        return self._node

    def _listeners(self) -> list[Listener]:
        return self._running_node().started().listeners


class _Node(BrokerService):
    """One run of a broker. `on_end(reason)`: as of `Broker._ended`."""

    def __init__(self, options: Any, on_end: Callable[[str | None], None]) -> None:
        from twisted_broker.reactor_watch import ReactorWatch
        from twisted_broker.tap import MEMORY, MonotonicClock, file_limit, production_runtime

        reactor = _reactor()
        config = options.broker_config
        # Not watched: the turns of this reactor are the program's.
        runtime = production_runtime(
            reactor, config, ReactorWatch(0), in_memory=options["data"] == MEMORY
        )
        super().__init__(
            config,
            dataclasses.replace(runtime, clock=MonotonicClock(reactor)),
            reactor=reactor,
            descriptors=file_limit(reactor) // _SHARE,
            when_ready=self._served,
        )
        self._options, self._on_end = options, on_end
        self.ready, self._end = _Outcome(), _Outcome()
        self.is_ready = False

    def started(self) -> KafkaServer:
        """The broker itself, once it is ready."""
        assert self.broker is not None
        return self.broker

    @property
    def status_address(self) -> str | None:
        return self._status_ports[self.started()].address

    async def _start(self) -> None:
        from twisted_broker.start_checks import check_machine

        # A service starts before its reactor runs; `on_failure` is called by one that does.
        await deferLater(self.runtime.clock, 0)  # type: ignore[arg-type]
        try:
            check_machine(self._options.broker_configs, self._options.directories)
        except SystemExit as error:
            self._fail(_one_line(error))
            return
        await super()._start()

    def _served(self) -> None:
        self.is_ready = True
        self.ready.finish(None)

    def _fail(self, reason: str) -> None:
        if not self._stopping:
            self.end(reason, is_failure=True)

    def end(self, reason: str, is_failure: bool = False) -> Deferred[None]:
        """Stops it, once; fires when it has stopped."""
        if not self._stopping:
            self.stopService().addBoth(self._has_ended, reason, is_failure)
        return self._end.wait()

    async def _stop(self) -> None:
        await super()._stop()
        network: Any = self.runtime.network
        await network.close()

    def _has_ended(self, result: object, reason: str, is_failure: bool) -> None:
        # Raised by a start that waits, or else handed on.
        is_raised = self.ready.is_awaited
        self.is_ready = False
        self._on_end(reason if is_failure and not is_raised else None)
        self.ready.finish(StartError(reason))
        self._end.finish(None)


class _Outcome:
    """What ends once, and whoever waits for it."""

    def __init__(self) -> None:
        self._is_finished = False
        self._error: StartError | None = None
        self._waiting: list[Deferred[None]] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def wait(self) -> Deferred[None]:
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if self._is_finished:
            self._fire()
        return waiting

    def finish(self, error: StartError | None) -> None:
        """Later calls change nothing."""
        if not self._is_finished:
            self._is_finished, self._error = True, error
            self._fire()

    def _fire(self) -> None:
        while self._waiting:
            waiting = self._waiting.pop()
            if self._error is None:
                waiting.callback(None)
            else:
                waiting.errback(self._error)


def _text(name: str, value: object) -> str:
    """As a properties file has it. Raises StartError."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise StartError(
        f"the setting {name} is a {type(value).__name__}: it takes text (lists with commas, as in "
        "a properties file), a number or a bool"
    )


def _options(
    settings: dict[str, str],
    data: str | os.PathLike[str] | None,
    host: str | None,
    port: int | None,
) -> Any:
    """As `twistd replog` takes them. Raises StartError."""
    for given, name, value in (
        ("data", "log.dirs", data),
        ("data", "log.dir", data),
        ("host", "listeners", host),
        ("port", "listeners", port),
    ):
        if value is not None and name in settings:
            raise StartError(
                f"{given}={value} contradicts the setting {name}={settings[name]}: give one of "
                "the two"
            )
    arguments = []
    if "listeners" not in settings:
        arguments += ["--port", str(port or 0)]
    if host is not None:
        arguments += ["--host", host]
    if data is not None:
        arguments += ["--data", os.path.abspath(data)]
    elif not {"log.dirs", "log.dir"} & settings.keys():
        arguments += ["--data", "memory"]
    if ZOOKEEPER_CONNECT in settings:
        raise StartError(
            f"setting {ZOOKEEPER_CONNECT}={settings[ZOOKEEPER_CONNECT]!r} is refused: a member of "
            "a ZooKeeper cluster is a process of its own (twistd -n replog --config FILE)"
        )
    try:
        from twisted_broker.tap import Options

        options = Options()
        options.settings = settings
        options.parseOptions(arguments)
    except SystemExit as error:
        raise StartError(_one_line(error)) from None
    return options


def _one_line(error: SystemExit) -> str:
    return str(error).removeprefix("replog: ")


def _reactor() -> Any:
    """The program's. Raises StartError in an asyncio task of another loop than the reactor's."""
    loop = _loop_of_task()
    if loop is not None and "twisted.internet.reactor" not in sys.modules:
        from twisted.internet import asyncioreactor

        asyncioreactor.install(loop)
    from twisted.internet import reactor

    if loop is not None and getattr(reactor, "_asyncioEventloop", None) is not loop:
        raise StartError(
            "this asyncio loop is not the reactor's, which is made once in a process: start the "
            "broker in the first loop, and import twisted.internet.reactor nowhere before that"
        )
    return reactor


def _loop_of_task() -> asyncio.AbstractEventLoop | None:
    """The loop whose task runs now; None in a callback of a reactor."""
    try:
        return None if asyncio.current_task() is None else asyncio.get_running_loop()
    except RuntimeError:
        return None


def _for_caller(work: Deferred[None]) -> Any:
    """What this caller can await: a task of asyncio takes its own futures only."""
    loop = _loop_of_task()
    return work if loop is None else work.asFuture(loop)
