"""The status port of a broker: an overview page, metrics and explanations over HTTP.

Owns the listening port and the connections on it.

1. On 127.0.0.1 only; `replog.status.port` is the port; 0 takes a free one, -1 opens none.
2. Nothing of HTTP, Prometheus or explanations is loaded before the first connection: neither the
   start nor an idle broker pays for it (measured: about 6 MB, and a tenth of a second once).
3. At most 16 connections at a time.
4. A port that cannot be opened is a warning: the broker serves without it.

Not here: the answers (`status/http_resources.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from twisted_broker.interfaces import Health, IClock, Runtime

if TYPE_CHECKING:
    from twisted_broker.status.view import NodeParts

HOST = "127.0.0.1"
OFF = -1
# Descriptors are for clients and logs.
_MAX_CONNECTIONS = 16
ServedRoutes = Callable[[], Iterable[Any]]
_logger = Logger(namespace="replog.status")


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

    def logPrefix(self) -> str:
        return "replog status"

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        if self._site is None:
            from twisted_broker.status.http_resources import StatusSite
            from twisted_broker.status.view import BrokerView

            view = BrokerView(self._parts, self._served)
            self._site = StatusSite(view, self._clock, self._health)
        if len(self._site.channels) >= _MAX_CONNECTIONS:
            return None
        made: Protocol | None = self._site.buildProtocol(addr)
        return made

    def close_all(self) -> None:
        """Ends every connection, answered or not."""
        for channel in [] if self._site is None else list(self._site.channels):
            channel.transport.abortConnection()


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
