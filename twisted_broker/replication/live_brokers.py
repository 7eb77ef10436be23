"""A leader's knowledge of other brokers: fenced or not, shutting down, broker epoch, rack; all
read from the metadata image.

Owns `LiveBrokers` and `ImageSource`.

Source: KRAFT 3.6; Kafka's `Partition.isReplicaIsrEligible`. Not here: the image
(`image`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataImage


class ImageSource(Protocol):
    """Who follows the metadata log; `image` is the newest image."""

    @property
    def image(self) -> MetadataImage: ...


class LiveBrokers:
    """`Brokers` of `partition`, read from the newest image at each question."""

    __slots__ = ("_source",)

    def __init__(self, source: ImageSource) -> None:
        self._source = source

    def is_alive(self, broker_id: int) -> bool:
        broker = self._source.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def may_be_in_isr(self, broker_id: int) -> bool:
        broker = self._source.image.brokers.get(broker_id)
        return broker is not None and broker.may_be_in_isr

    def is_leaving(self, broker_id: int) -> bool:
        broker = self._source.image.brokers.get(broker_id)
        return broker is not None and broker.in_controlled_shutdown

    def epoch_of(self, broker_id: int) -> int:
        broker = self._source.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def rack_of(self, broker_id: int) -> str | None:
        """None for a broker that is not known, is fenced, or has no rack."""
        broker = self._source.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack
