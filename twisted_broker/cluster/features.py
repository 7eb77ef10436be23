"""The features whose levels this program honours.

1. A range is claimed only for what works; what is absent is claimed as level 0.
2. kraft.version (1: voters that the log names, KIP-853) is no feature level of the image: the
   quorum's control records say it.

Source: Kafka's `Feature`, `MetadataVersion`; KIP-584; `RL 8.1`.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.cluster.records import LATEST_METADATA_VERSION, MINIMUM_METADATA_VERSION
from twisted_broker.image.entries import FeatureRange
from twisted_broker.image.metadata_image import METADATA_VERSION, MetadataImage

TRANSACTION_VERSION, GROUP_VERSION = "transaction.version", "group.version"
KRAFT_VERSION, SHARE_VERSION = "kraft.version", "share.version"
STREAMS_VERSION = "streams.version"

SUPPORTED_FEATURES: Mapping[str, FeatureRange] = {
    ELR_FEATURE: FeatureRange(0, 1),
    GROUP_VERSION: FeatureRange(0, 1),
    KRAFT_VERSION: FeatureRange(0, 1),
    METADATA_VERSION: FeatureRange(MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
    SHARE_VERSION: FeatureRange(0, 1),
    STREAMS_VERSION: FeatureRange(0, 1),
    TRANSACTION_VERSION: FeatureRange(0, 2),
}

INITIAL_LEVELS: Mapping[str, int] = {
    METADATA_VERSION: LATEST_METADATA_VERSION,
    ELR_FEATURE: 1,
    GROUP_VERSION: 1,
    SHARE_VERSION: 1,
    STREAMS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""What a new cluster finalises."""


def serves_consumer_groups(image: MetadataImage) -> bool:
    """Whether the cluster has finalised the protocol of KIP-848."""
    return image.features.get(GROUP_VERSION, 0) >= 1


def serves_share_groups(image: MetadataImage) -> bool:
    """Whether the cluster has finalised the protocol of KIP-932."""
    return image.features.get(SHARE_VERSION, 0) >= 1


def serves_streams_groups(image: MetadataImage) -> bool:
    """Whether the cluster has finalised the protocol of KIP-1071."""
    return image.features.get(STREAMS_VERSION, 0) >= 1


def transaction_version(image: MetadataImage) -> int:
    """The finalised level of transaction.version: 0 where there is none; 1 flexible records; 2 an
    epoch for every transaction (KIP-890).
    """
    return image.features.get(TRANSACTION_VERSION, 0)
