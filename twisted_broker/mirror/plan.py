"""The steps in the target by which its topics become mirrors of the source's.

Owns `TopicState` (a topic as one cluster has it), `plan_for` and `TopicPlan`.

1. A topic is made with the source's number of partitions and its own settings, and with
   `replog.mirror.source`, which names cluster and topic id: a copy is never continued from
   another topic of the same name.
2. A topic that is there and is no mirror is refused, as is one with more partitions than the
   source: nothing is ever taken over or deleted.
3. Settings follow: what the source sets is set, what it does not set is deleted. What the target
   does not know is left out, and named. What concerns one cluster only (throttles, tiered storage)
   does not follow.

Source: none, ours; docs/MIRROR.md. Pure. Not here: requests (`clusters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted_broker.config import THROTTLED_REPLICAS, TIERED_SETTINGS, TOPIC_SETTINGS
from twisted_broker.wire.primitives import NULL_UUID, uuid_text

SOURCE_SETTING = "replog.mirror.source"
_OF_ITS_CLUSTER = TIERED_SETTINGS | THROTTLED_REPLICAS | {SOURCE_SETTING}


class TopicState(NamedTuple):
    """A topic; `settings`: those that are its own; `compacted`: by its own or a broker's."""

    topic_id: bytes
    partitions: int
    settings: Mapping[str, str]
    compacted: bool = False


class TopicPlan(NamedTuple):
    """`refusal`: why the topic cannot be mirrored, "" where it can. Else, in this order: `create`
    it, make it `partitions` large (0: it is), change settings (None: delete). `unknown`: settings
    that the target does not have.
    """

    refusal: str = ""
    create: bool = False
    partitions: int = 0
    settings: Mapping[str, str | None] = {}
    unknown: tuple[str, ...] = ()


def source_name(cluster_id: str, topic_id: bytes) -> str:
    """The value of `replog.mirror.source`. A cluster without topic ids (before Kafka 2.8) has none
    in it.
    """
    return cluster_id + ("" if topic_id == NULL_UUID else f"/{uuid_text(topic_id)}")


def plan_for(
    name: str, cluster_id: str, source: TopicState, target: TopicState | None
) -> TopicPlan:
    """The plan for one topic; `cluster_id`: of the source."""
    followed = {key: value for key, value in source.settings.items() if key not in _OF_ITS_CLUSTER}
    unknown = tuple(sorted(key for key in followed if key not in TOPIC_SETTINGS))
    # Kafka 3.9 has other bounds: what is out of ours would keep the topic from being made.
    wanted: dict[str, str] = {
        key: TOPIC_SETTINGS[key].nearest(value) or value
        for key, value in followed.items()
        if key in TOPIC_SETTINGS
    }
    wanted[SOURCE_SETTING] = source_name(cluster_id, source.topic_id)
    if target is None:
        return TopicPlan("", True, source.partitions, wanted, unknown)
    held = target.settings.get(SOURCE_SETTING, "")
    if not held:
        return TopicPlan(
            f"topic {name} is in the target already and is no mirror: delete it there, or leave "
            "it out of --topics"
        )
    # Without an id: a ZooKeeper cluster gave its topics ids since, with its protocol's upgrade.
    if held not in (wanted[SOURCE_SETTING], cluster_id):
        return TopicPlan(
            f"topic {name} of the target is a mirror of {held}, the source is "
            f"{wanted[SOURCE_SETTING]} (another cluster, or the topic was deleted and created "
            "again): delete it in the target to copy it anew"
        )
    if target.partitions > source.partitions:
        return TopicPlan(
            f"topic {name} has {target.partitions} partitions in the target, "
            f"{source.partitions} in the source: delete it in the target to copy it anew"
        )
    changes: dict[str, str | None] = {
        key: value for key, value in wanted.items() if target.settings.get(key) != value
    }
    changes |= {
        key: None for key in target.settings if key not in wanted and key not in _OF_ITS_CLUSTER
    }
    grown = source.partitions if source.partitions > target.partitions else 0
    return TopicPlan("", False, grown, changes, unknown)
