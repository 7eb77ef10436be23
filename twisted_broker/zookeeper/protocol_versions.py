"""The versions that brokers of a ZooKeeper cluster speak among themselves: nothing is negotiated.

Owns the two inter-broker protocols that are supported, and what each means.

Source: KRAFT 2.2-2.5; Kafka 3.9's `MetadataVersion`. Not here: the messages
(`wire/messages/zookeeper_controller.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.settings import ConfigError

SETTING = "inter.broker.protocol.version"


class InterBrokerProtocol(NamedTuple):
    """`features`: brokers name their features; `topic_ids`: topics have ids; `alter_partition`:
    ISR changes go to the controller, not into ZooKeeper; `fetch` and the others: versions of
    requests to leaders.
    """

    name: str
    features: bool
    topic_ids: bool
    alter_partition: bool
    allocate_producer_ids: bool
    truncates_on_fetch: bool
    fetch: int
    list_offsets: int
    offset_for_leader_epoch: int


IBP_2_6 = InterBrokerProtocol("2.6", False, False, False, False, False, 11, 5, 3)
IBP_3_9 = InterBrokerProtocol("3.9", True, True, True, True, True, 17, 9, 4)
_NAMES = {"2.6": IBP_2_6, "2.6-IV0": IBP_2_6, "3.9": IBP_3_9, "3.9-IV0": IBP_3_9}


def protocol_of(text: str) -> InterBrokerProtocol:
    """Of the setting. Raises ConfigError."""
    found = _NAMES.get(text.strip())
    if found is None:
        raise ConfigError(
            SETTING,
            text,
            "2.6 or 3.9, as all brokers of the cluster have it (with zookeeper.connect)",
        )
    return found
