"""A node's listeners: their ports, what serves their connections, and what limits these.

Owns `SocketServer`: the open ports, one `ConnectionFactory` and one `Dispatcher` for each listener,
and the listeners that come and go while it runs.

1. A broker's port is bound at the start; its clients wait until they are let in.
2. What is advertised becomes part of the configuration, with the ports that were found.

Ring 1. Source: Kafka's `SocketServer`. Not here: parsing (`net/listeners.py`), what a change of
settings opens (`net/dynamic_listener_config.py`), connections (`net/connection.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_broker.api.context import BrokerParts
from twisted_broker.api.dispatch import BoundRoute, Dispatcher
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.net.connection_limits import ConnectionCounts, ConnectionFactory
from twisted_broker.net.dynamic_listener_config import DynamicListenerConfig
from twisted_broker.net.listener_security import ListenerSecurity
from twisted_broker.net.listeners import (
    ConfiguredListener,
    Listener,
    ListenerName,
    ListenerPlan,
    OpenListeners,
    check_sasl,
    plan_listeners,
    sasl_settings,
)
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.settings import INT_MAX

if TYPE_CHECKING:
    from twisted_broker.net.sasl_gate import SaslListener
    from twisted_broker.security.sasl.scram import ScramCredential, ScramMechanism, TokenLogin
    from twisted_broker.server.shared_server import SharedServer


class SocketServer:
    """`make_dispatcher(name)`: the way in of a listener; `parts()`: what it serves by now."""

    def __init__(
        self,
        shared: SharedServer,
        make_dispatcher: Callable[[ListenerName], Dispatcher],
        parts: Callable[[], BrokerParts],
    ) -> None:
        self.config, self.runtime = shared.config, shared.runtime
        self._shared, self._make_dispatcher, self._parts = shared, make_dispatcher, parts
        config, runtime = shared.config, shared.runtime
        self.plan: ListenerPlan = plan_listeners(config)
        check_sasl(config, self.plan)
        self.security = ListenerSecurity(runtime, config, self.plan)
        self._open = OpenListeners(runtime)
        self.dynamic = DynamicListenerConfig(
            config,
            self.plan,
            runtime.key_files or runtime.files,
            self.security,
            self._open.can_bind,
            self._listen_later,
            self._close_listener,
            self._listeners_changed,
        )
        self.listeners: list[Listener] = []
        self.factories: list[ConnectionFactory] = []
        self.dispatchers: list[Dispatcher] = []
        self._subscribers: list[Callable[[], None]] = []
        self.counts = ConnectionCounts(
            config.integer("max.connections"),
            config.integer("max.connections.per.ip"),
            lambda: shared.shares.clients(shared.log_manager.directories.descriptors()),
            [each.name for each in self.plan.broker],
            shared.connection_rates,
            self.plan.inter_broker,
            shared.shares.brokers,
        )
        self._request_bytes = RequestBytes(
            config.integer("queued.max.request.bytes"), runtime.clock
        )
        self.counts.settings_changed(config)
        config.subscribe(self.counts.settings_changed)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """`changed()` is called once this broker's listeners are other ones."""
        self._subscribers.append(changed)

    def bound_routes(self) -> list[BoundRoute]:
        """The APIs requested so far, for their counts."""
        return [each for dispatcher in self.dispatchers for each in dispatcher.bound_routes]

    def start_accepting(self, which: Callable[[Listener], bool] = lambda listener: True) -> None:
        """Lets clients in, of all listeners or some."""
        self._open.start_accepting(which)

    async def listen(self, endpoint: ConfiguredListener, is_controller: bool) -> Listener:
        """Opens a port; for a broker's port, clients wait until they are let in."""
        protocol = self.plan.protocols[endpoint.name]
        dispatcher = self._dispatcher(ListenerName(endpoint.name, is_controller, protocol))
        factory = ConnectionFactory(
            self.runtime,
            dispatcher,
            ConnectionCounts(self._shared.shares.controller, INT_MAX, inter_broker=endpoint.name)
            if is_controller
            else self.counts,
            frame_limit=self.config.integer("socket.request.max.bytes"),
            idle_ms=self.config.integer("connections.max.idle.ms"),
            on_controller=is_controller,
            request_bytes=RequestBytes(
                self.config.integer("queued.max.request.bytes"), self.runtime.clock
            )
            if is_controller
            else self._request_bytes,
            name=endpoint.name,
            protocol=protocol,
            sasl=await self._sasl_listener(endpoint.name, is_controller),
        )
        listener = await self._open.open(
            endpoint,
            self.security.wrapped(endpoint.name, factory),
            self.plan.advertised.get(endpoint.name, endpoint),
            is_controller,
            is_controller and endpoint.name in self.plan.early,
            protocol,
        )
        self.factories.append(factory)
        self.listeners.append(listener)
        return listener

    def _dispatcher(self, name: ListenerName) -> Dispatcher:
        """One that comes again goes on with its counts."""
        for dispatcher in self.dispatchers:
            if dispatcher.listener == name:
                return dispatcher
        self.dispatchers.append(self._make_dispatcher(name))
        return self.dispatchers[-1]

    # listeners that come and go while it runs

    async def _listen_later(self, plan: ListenerPlan, endpoint: ConfiguredListener) -> None:
        self.plan = plan
        self.security.add(endpoint.name, plan.protocols[endpoint.name])
        try:
            listener = await self.listen(endpoint, is_controller=False)
        except BaseException:
            self.security.remove(endpoint.name)
            raise
        self._open.start_accepting(lambda each: each is listener)

    async def _close_listener(self, name: str) -> None:
        """Its port, then its connections."""
        await self._open.close(lambda listener: listener.name == name)
        self.listeners[:] = [each for each in self.listeners if each.name != name]
        for factory in [each for each in self.factories if each.name == name]:
            self.factories.remove(factory)
            self._close_connections_of(factory)
        self.security.remove(name)

    def _listeners_changed(self) -> None:
        self.plan = self.dynamic.plan
        self.counts.serve([each.name for each in self.plan.broker])
        self.set_advertised_listeners()
        for changed in self._subscribers:
            changed()

    def endpoints(self, of_controller: bool = False) -> list[Endpoint]:
        """The listeners of one role, as they are registered."""
        return [
            Endpoint(each.name, each.host, each.port, each.protocol)
            for each in self.listeners
            if each.is_controller == of_controller
        ]

    def set_advertised_listeners(self) -> None:
        """What is advertised becomes part of the configuration, with the ports that were found."""
        advertised = ",".join(
            str(ConfiguredListener(each.name, each.host, each.port))
            for each in self.listeners
            if not each.is_controller
        )
        self.config.replace(
            BrokerConfig(
                self.config.static | {"advertised.listeners": advertised},
                self.config.cluster,
                self.config.broker,
            )
        )

    async def _sasl_listener(self, name: str, is_controller: bool) -> SaslListener | None:
        if not self.plan.protocols[name].uses_sasl:
            return None
        settings = sasl_settings(self.config, name)
        from twisted_broker.cluster.scram_changes import stored_credential
        from twisted_broker.net.sasl_gate import SaslListener

        def lookup(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
            # A broker reads the metadata only after its controller let it in.
            source = self._parts().controller if is_controller else self._parts().metadata
            return None if source is None else stored_credential(source.image, mechanism, user)

        def token(mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
            secret = self._parts().tokens.secret
            source = self._parts().controller if is_controller else self._parts().metadata
            if secret is None or source is None:
                return None
            from twisted_broker.cluster.token_changes import login_of

            return login_of(source.image, secret, mechanism, token_id, self.runtime.wall_ms())

        jwks = None
        if settings.oauth is not None:
            from twisted_broker.net.jwks import JwksKeys

            jwks = JwksKeys(settings.oauth.jwks_url, settings.oauth.refresh_ms, self.runtime.clock)
            await jwks.load()
        return SaslListener(self.runtime, name, settings, lookup, jwks, token)

    # stopping

    async def stop(self, on_controller: bool) -> None:
        """Closes the ports of one role, then its connections; a controller's stop closes all that
        is left open.
        """
        await self._open.close(lambda listener: on_controller or not listener.is_controller)
        for factory in self.factories:
            if factory.on_controller == on_controller:
                self._close_connections_of(factory)

    def _close_connections_of(self, factory: ConnectionFactory) -> None:
        factory.close_all()
        if factory.sasl is not None:
            factory.sasl.stop()
