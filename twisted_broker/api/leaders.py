"""Where to send a request instead: the current leader of a partition and where it is reached, for
answers that name them (KIP-951).

Source: Kafka's `KafkaApis.getCurrentLeader`. Not here: who is leader (`image`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.image.metadata_image import MetadataImage


class LeaderHints:
    """Collects the endpoints that one answer names; `endpoint` is the class of its
    `node_endpoints`.
    """

    __slots__ = ("_endpoint", "_image", "_listener", "_named", "endpoints")

    def __init__(self, context: RequestContext, endpoint: type[Any]) -> None:
        self._image: MetadataImage = context.metadata.image
        self._listener = context.listener.name
        self._endpoint = endpoint
        self._named: set[int] = set()
        self.endpoints: list[Any] = []

    def leader_of(self, topic: str, partition: int) -> tuple[int, int]:
        """(leader id, leader epoch), -1 where unknown; its endpoint is noted once."""
        state = self._image.partition(topic, partition)
        if state is None:
            return -1, -1
        broker = self._image.brokers.get(state.leader)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        if broker is not None and endpoint is not None and state.leader not in self._named:
            self._named.add(state.leader)
            self.endpoints.append(
                self._endpoint(
                    node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
        return state.leader, state.leader_epoch
