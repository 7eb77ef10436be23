"""The status port of a broker: an overview page, metrics and explanations over HTTP.

Owns the listening port and the connections on it.

1. On 127.0.0.1 only; `replog.status.port` is the port; 0 takes a free one, -1 opens none.
2. Nothing of HTTP, Prometheus or explanations is loaded before the first connection: neither the
   start nor an idle broker pays for it (measured: about 6 MB, and a tenth of a second once). It is
   loaded in steps of some 20 ms, one in each turn; who connects meanwhile waits.
3. At most 16 connections at a time; who comes then takes the place of the oldest that has not asked
   yet, so that no number of idle ones keeps a probe out.
4. A port that cannot be opened is a warning: the broker serves without it.

Not here: the answers (`status/http_resources.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import Health, IClock, IDelayedCall, Runtime

if TYPE_CHECKING:
    from twisted_broker.status.view import NodeParts

HOST = "127.0.0.1"
OFF = -1
# Descriptors are for clients and logs.
_MAX_CONNECTIONS = 16
ServedRoutes = Callable[[], Iterable[Any]]
_logger = Logger(namespace="replog.status")


def _load_steps() -> Iterator[None]:
    """Loads the site's imports, the largest parts one by one."""
    import prometheus_client  # noqa: F401

    yield
    import twisted.web.server  # noqa: F401

    yield
    import twisted_broker.replication.explain.explanation

    yield
    import twisted_broker.status.metrics

    yield
    import twisted_broker.status.http_resources  # noqa: F401


class _Waiting(Protocol):
    """A connection that came before the site was loaded: nothing is read from it until then. It
    runs over the broker's own transport, so it has `receive_space`.
    """

    def __init__(self, address: IAddress | None, waiting: dict[_Waiting, None]) -> None:
        self._address, self._all = address, waiting
        self._made: Protocol | None = None

    def connectionMade(self) -> None:
        self._all[self] = None
        transport: Any = self.transport
        transport.pauseProducing()

    def serve(self, site: Any) -> None:
        transport: Any = self.transport
        self._all.pop(self, None)
        made: Protocol = site.buildProtocol(self._address)
        self._made = made
        made.makeConnection(transport)
        transport.resumeProducing()

    def end(self) -> None:
        self._all.pop(self, None)
        transport: Any = self.transport
        transport.loseConnection()

    def receive_space(self) -> None:
        """Nowhere: `dataReceived` takes it."""
        return

    def dataReceived(self, data: bytes) -> None:
        if self._made is not None:
            self._made.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._all.pop(self, None)
        made, self._made = self._made, None
        if made is not None:
            made.connectionLost(reason)


class StatusFactory(Factory):
    """Loads the site with the first connection."""

    noisy = False

    def __init__(
        self,
        clock: IClock,
        parts: Callable[[], NodeParts],
        served: ServedRoutes,
        health: Callable[[], Health],
    ) -> None:
        self._clock = clock
        self._parts = parts
        self._served = served
        self._health = health
        self._site: Any = None
        self._waiting: dict[_Waiting, None] = {}
        self._loading: IDelayedCall | None = None

    def logPrefix(self) -> str:
        return "replog status"

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        if self._site is not None:
            self._site.make_room(_MAX_CONNECTIONS)
            made: Protocol | None = self._site.buildProtocol(addr)
            return made
        if len(self._waiting) >= _MAX_CONNECTIONS:
            next(iter(self._waiting)).end()
        if self._loading is None:
            self._loading = self._clock.callLater(0, self._load, _load_steps())
        return _Waiting(addr, self._waiting)

    def _load(self, steps: Iterator[None]) -> None:
        try:
            for _ in steps:
                self._loading = self._clock.callLater(0, self._load, steps)
                return
            self._loading = None
            site = self._make_site()
            for each in tuple(self._waiting):
                each.serve(site)
            self._site = site
        except Exception:
            _logger.failure("loading the status pages failed")
            self.close_all()

    def _make_site(self) -> Any:
        from twisted_broker.status.http_resources import StatusSite
        from twisted_broker.status.view import BrokerView

        return StatusSite(BrokerView(self._parts, self._served), self._clock, self._health)

    def close_all(self) -> None:
        """Ends every connection, answered or not."""
        loading, self._loading = self._loading, None
        if loading is not None and loading.active():
            loading.cancel()
        for each in tuple(self._waiting):
            each.end()
        if self._site is not None:
            for channel in (*self._site.reading, *self._site.answering):
                channel.end()


class StatusPort:
    """`parts`, `served`: as of `BrokerView`; `health()`: what probes are answered. `address` is
    HOST:PORT while it is open, else None.
    """

    def __init__(
        self,
        runtime: Runtime,
        parts: Callable[[], NodeParts],
        served: ServedRoutes,
        port: int,
        health: Callable[[], Health],
    ) -> None:
        self.address: str | None = None
        self._runtime = runtime
        self._wanted = port
        self._factory = StatusFactory(runtime.clock, parts, served, health)
        self._port: Any = None

    async def open(self) -> None:
        """Afterwards `address` says where, or stays None."""
        if self._wanted == OFF:
            return
        try:
            self._port = await maybeDeferred(
                self._runtime.network.listen, HOST, self._wanted, self._factory
            )
        except CannotListenError as error:
            _logger.warn(
                "cannot open the status port; change replog.status.port (-1: none): {error}",
                error=error,
            )
            return
        self.address = f"{HOST}:{self._port.getHost().port}"

    async def close(self) -> None:
        """Ends connections too."""
        port, self._port, self.address = self._port, None, None
        if port is not None:
            await maybeDeferred(port.stopListening)
            self._factory.close_all()
