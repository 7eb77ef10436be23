"""UpdateFeatures: what the controller decides about the finalised levels of features.

Owns `update_features`.

1. All of a request's features change, or none: one refusal is the answer to all of them.
2. A level is finalised only if this controller, every registered broker and every other registered
   controller support it, all static voters have registered, and what it needs of other features
   holds after the request.
3. A lower level needs to be named as a downgrade. metadata.version goes down only over levels that
   changed no record.
4. Eligible leader replicas begin with the cluster's own `min.insync.replicas`, and leave none
   behind when they end.

Source: Kafka's `FeatureControlManager`, `QuorumFeatures`, `MetadataVersion`, `Feature` (KIP-584,
KIP-778, KIP-966, KIP-1022). Unlike there, a level that is finalised already writes no record.
Not here: which levels this program supports (`features.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.cluster.records import CONTROLLER_LEVEL, ELR_LEVEL
from twisted_broker.image.entries import FeatureRange
from twisted_broker.image.metadata_image import BROKER_RESOURCE, METADATA_VERSION
from twisted_broker.settings import text_of
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.cluster import FeatureUpdateKey
from twisted_broker.wire.schema import Record

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
# The levels, among those of 3.3 to 4.3, that changed records.
CHANGED_RECORDS = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})
_ABSENT = FeatureRange(0, 0)
_MIN_ISR = "min.insync.replicas"
_FAILED = "no feature was changed, because of one: "


def update_features(
    view: ClusterView,
    updates: Sequence[FeatureUpdateKey],
    node_id: int,
    supported: Mapping[str, FeatureRange],
    voters: Collection[int] = (),
) -> list[Record]:
    """The records of a request, `supported` by this controller, which is node `node_id`. `voters`:
    the controllers that are configured.

    Raises BrokerError(INVALID_UPDATE_VERSION).
    """
    levels = {update.feature: update.max_version_level for update in updates}
    after = {**view.image.features, **levels}
    found: list[Record] = []
    for update in {update.feature: update for update in updates}.values():
        reason = _refusal(view, update, node_id, supported, after, voters)
        if reason is not None:
            raise BrokerError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{_FAILED}{update.feature} cannot become {update.max_version_level}: {reason}",
            )
        if update.max_version_level != view.image.features.get(update.feature, 0):
            found += _records(view, update.feature, update.max_version_level)
    return found


def check_kraft_version(
    view: ClusterView,
    update: FeatureUpdateKey,
    node_id: int,
    supported: Mapping[str, FeatureRange],
) -> None:
    """Whether every broker and controller serves that level; the voters are the quorum's to ask.
    Raises BrokerError(INVALID_UPDATE_VERSION).
    """
    for who, range_ in _ranges(view, update.feature, node_id, supported):
        if not range_.contains(update.max_version_level):
            raise BrokerError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{_FAILED}{update.feature} cannot become {update.max_version_level}: {who} "
                f"supports {range_.min_version} to {range_.max_version}",
            )


def _refusal(
    view: ClusterView,
    update: FeatureUpdateKey,
    node_id: int,
    supported: Mapping[str, FeatureRange],
    after: Mapping[str, int],
    voters: Collection[int],
) -> str | None:
    name, level = update.feature, update.max_version_level
    current = view.image.features.get(name, 0)
    kind = SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return f"there is no kind {kind} of change"
    if name not in supported:
        return f"controller {node_id} does not support this feature"
    for who, range_ in _ranges(view, name, node_id, supported):
        if not range_.contains(level):
            return f"{who} supports {range_.min_version} to {range_.max_version}"
    if view.image.metadata_version >= CONTROLLER_LEVEL:
        for voter in sorted(set(voters) - {node_id} - view.image.controllers.keys()):
            return f"controller {voter} has not registered"
    if level < current and kind == UPGRADE:
        return f"it is {current}, and the request does not say that this is a downgrade"
    if level > current and kind != UPGRADE:
        return f"it is {current}, which is no downgrade"
    if name == METADATA_VERSION:
        # Unsafe downgrades are refused, too: there is no way to rewrite records (KAFKA-13896).
        if any(level < each <= current for each in CHANGED_RECORDS):
            return f"it is {current}, and lower ones lack records that may be in use"
    elif name == ELR_FEATURE and level and after[METADATA_VERSION] < ELR_LEVEL:
        return f"it needs {METADATA_VERSION} {ELR_LEVEL} or above"
    return None


def _ranges(
    view: ClusterView, name: str, node_id: int, supported: Mapping[str, FeatureRange]
) -> Iterator[tuple[str, FeatureRange]]:
    yield f"controller {node_id}", supported[name]
    for broker in view.image.brokers.values():
        yield f"broker {broker.id}", broker.features.get(name, _ABSENT)
    for controller in view.image.controllers.values():
        if controller.id != node_id:
            yield f"controller {controller.id}", controller.features.get(name, _ABSENT)


def _records(view: ClusterView, name: str, level: int) -> Iterator[Record]:
    if name == ELR_FEATURE:
        yield from _minimum_isr(view) if level else [records.ClearElrRecord(topic_name="")]
    yield records.FeatureLevelRecord(name=name, feature_level=level)


def _minimum_isr(view: ClusterView) -> Iterator[Record]:
    """With eligible leader replicas the minimum ISR is the cluster's, no broker's."""
    configs = view.image.configs
    if _MIN_ISR not in view.image.config(BROKER_RESOURCE, ""):
        yield _config("", text_of(view.config[_MIN_ISR]))
    for kind, broker in sorted(configs):
        if kind == BROKER_RESOURCE and broker and _MIN_ISR in configs[kind, broker]:
            yield _config(broker, None)


def _config(broker: str, value: str | None) -> Record:
    return records.ConfigRecord(
        resource_type=BROKER_RESOURCE, resource_name=broker, name=_MIN_ISR, value=value
    )
