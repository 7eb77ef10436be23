"""A broker's interface to its cluster, where a KRaft controller or ZooKeeper keeps the metadata.

Owns the two protocols that other packages know: where the image comes from, and whether this broker
is registered.

Source: our own. Not here: how a broker joins (`server/membership.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
    from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage


class IMetadata(Protocol):
    """Follows the cluster's metadata; `image` is the newest image."""

    @property
    def image(self) -> MetadataImage: ...

    def subscribe(self, subscriber: Callable[[MetadataDelta], None]) -> None:
        """`subscriber(delta)` is called after each change of the image."""
        ...


class ILifecycle(Protocol):
    """This broker's registration: Kafka's `BrokerLifecycleManager`, or a node of ZooKeeper."""

    state: BrokerState

    @property
    def broker_epoch(self) -> int:
        """-1 before the registration."""
        ...

    def directory_failed(self, directory_id: bytes) -> None:
        """The controller hears of it."""
        ...

    def controlled_shutdown(self) -> Deferred[None]:
        """Fires when the controller has moved this broker's leaderships; never fails."""
        ...

    def skip_controlled_shutdown(self) -> None: ...

    def stop(self) -> None: ...
