"""What a request function sees besides its request: the client, the listener, and the parts of
the broker.

1. One context per request, gone with its answer.
2. A loop over what a client named, or over what the cluster holds, takes its elements off `room`,
   and awaits `next_turn()` when none is left: no client waits for another's long request.
3. `appended` is set by Produce once its records are in the logs: from then on, and only then, the
   connection may start the next Produce.

Not here: everything that decides; the parts do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from twisted_broker.net.listeners import Listener
from twisted_broker.security.acl import CLUSTER_NAME, Authorizer, Operation, ResourceType
from twisted_broker.security.principal import ANONYMOUS, Principal
from twisted_broker.turns import SLICE_ELEMENTS, Turns

__all__ = ["BrokerParts", "Listener", "RequestContext"]

if TYPE_CHECKING:
    from twisted_broker.config import BrokerConfig
    from twisted_broker.interfaces import Runtime


T = TypeVar("T")
_USUAL_WAIT_MS, _LONGEST_WAIT_MS = 30_000, 600_000


class BrokerParts:
    """The parts of one broker, joined in `broker.py`.

    What a process without that role lacks is None.
    """

    __slots__ = (
        "authorizer",
        "cluster_id",
        "config",
        "controller",
        "features",
        "forwarding",
        "groups",
        "listeners",
        "log_manager",
        "metadata",
        "node_id",
        "producer_ids",
        "replica_manager",
        "runtime",
        "turns",
    )

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        config: BrokerConfig,
        runtime: Runtime,
        authorizer: Authorizer,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.config = config
        self.runtime = runtime
        self.authorizer = authorizer
        self.features: dict[str, tuple[int, int]] = {}
        self.listeners: tuple[Listener, ...] = ()
        self.log_manager: Any = None
        self.replica_manager: Any = None
        self.metadata: Any = None
        self.forwarding: Any = None
        self.controller: Any = None
        self.groups: Any = None
        self.producer_ids: Any = None
        self.turns = Turns(runtime.clock)


class Encoded:
    """An answer whose body was encoded by the function itself, in slices: `parts` one after the
    other.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class RequestContext:
    """One request.

    Times are the runtime's; names come from the client and are quoted before they are logged.
    """

    __slots__ = (
        "api_key",
        "appended",
        "broker",
        "client_host",
        "client_id",
        "connection",
        "correlation_id",
        "dispatcher",
        "listener",
        "principal",
        "raw_request",
        "room",
        "sliced",
        "version",
    )

    def __init__(
        self,
        broker: BrokerParts,
        listener: Listener,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str = "",
        principal: Principal = ANONYMOUS,
        connection: Any = None,
        raw_request: bytes | memoryview = b"",
        dispatcher: Any = None,
    ) -> None:
        self.broker = broker
        self.listener = listener
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.principal = principal
        self.connection = connection
        self.raw_request = raw_request
        self.dispatcher = dispatcher
        self.appended = self.sliced = False
        self.room = SLICE_ELEMENTS

    async def next_turn(self) -> None:
        """Lets others be served; there is room for a slice more afterwards.

        What was looked up before may have changed.
        """
        self.sliced = True
        await self.broker.turns.next_turn()
        self.room = SLICE_ELEMENTS

    async def in_slices(self, work: Generator[None, None, T]) -> T:
        """What `work` returns; others are served where it pauses."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self.next_turn()

    @property
    def config(self) -> BrokerConfig:
        return self.broker.config

    @property
    def runtime(self) -> Runtime:
        return self.broker.runtime

    @property
    def node_id(self) -> int:
        return self.broker.node_id

    @property
    def cluster_id(self) -> str:
        return self.broker.cluster_id

    @property
    def metadata(self) -> Any:
        """The image source: `.image` is the newest `MetadataImage`."""
        return self.broker.metadata

    @property
    def replica_manager(self) -> Any:
        return self.broker.replica_manager

    @property
    def log_manager(self) -> Any:
        return self.broker.log_manager

    @property
    def groups(self) -> Any:
        return self.broker.groups

    @property
    def producer_ids(self) -> Any:
        """`await next()` gives a producer id that is used nowhere else."""
        return self.broker.producer_ids

    @property
    def forwarding(self) -> Any:
        return self.broker.forwarding

    @property
    def controller(self) -> Any:
        """The embedded controller; only on its own listener."""
        return self.broker.controller

    @property
    def authorizer(self) -> Authorizer:
        return self.broker.authorizer

    def bounded_wait(self, wait_ms: int) -> int:
        """How long a request waits that asks for `wait_ms`: no longer than a silent connection
        is kept. Kafka closes the connection then.
        """
        if wait_ms <= _USUAL_WAIT_MS:
            return wait_ms
        idle_ms = self.broker.config.integer("connections.max.idle.ms")
        return min(wait_ms, max(_USUAL_WAIT_MS, idle_ms) if idle_ms > 0 else _LONGEST_WAIT_MS)

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the asking principal may do it."""
        return self.broker.authorizer.authorize(
            self.principal, self.client_host, operation, resource, name
        )

    def may_on_cluster(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)
