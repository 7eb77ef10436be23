"""UpdateFeatures: which levels may become final, decided on an image and asked of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.feature_changes import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    update_features,
)
from twisted_broker.cluster.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.cluster.records import LATEST_METADATA_VERSION
from twisted_broker.image.entries import BrokerRegistration, ControllerRegistration, FeatureRange
from twisted_broker.image.metadata_image import BROKER_RESOURCE, METADATA_VERSION, MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.cluster import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from twisted_broker.wire.schema import Record

RANGES = {
    METADATA_VERSION: FeatureRange(7, 30),
    TRANSACTION_VERSION: FeatureRange(0, 2),
    ELR_FEATURE: FeatureRange(0, 1),
}


def view(
    levels: Mapping[str, int],
    *,
    brokers: Mapping[int, Mapping[str, FeatureRange]] | None = None,
    controllers: Mapping[int, Mapping[str, FeatureRange]] | None = None,
    configs: Any = None,
) -> ClusterView:
    image = MetadataImage(
        features=levels,
        brokers={
            number: BrokerRegistration(number, 1, bytes(16), {}, ranges, None, True, False, ())
            for number, ranges in (brokers or {1: RANGES}).items()
        },
        controllers={
            number: ControllerRegistration(number, bytes(16), {}, ranges)
            for number, ranges in (controllers or {1: RANGES}).items()
        },
        configs=configs or {},
    )
    return ClusterView(image, BrokerConfig({"min.insync.replicas": "2"}))


def change(name: str, level: int, kind: int = UPGRADE) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)


def decided(on: ClusterView, *updates: FeatureUpdateKey) -> list[Record]:
    return update_features(on, updates, 1, RANGES)


def levels(found: list[Record]) -> dict[str, int]:
    return {
        each.name: each.feature_level
        for each in found
        if isinstance(each, records.FeatureLevelRecord)
    }


AT_30 = {METADATA_VERSION: 30, TRANSACTION_VERSION: 1}


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [
        (TRANSACTION_VERSION, 2, UPGRADE),
        (TRANSACTION_VERSION, 0, SAFE_DOWNGRADE),
        (TRANSACTION_VERSION, 0, UNSAFE_DOWNGRADE),
    ],
)
def test_a_level_that_all_support_becomes_final(name, level, kind):
    assert levels(decided(view(AT_30), change(name, level, kind))) == {name: level}


def test_a_level_that_is_final_already_writes_nothing():
    for kind in (UPGRADE, SAFE_DOWNGRADE):
        assert decided(view(AT_30), change(TRANSACTION_VERSION, 1, kind)) == []


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (change(TRANSACTION_VERSION, 3), "controller 1 supports 0 to 2"),
        (change(TRANSACTION_VERSION, -1), "controller 1 supports 0 to 2"),
        (change(TRANSACTION_VERSION, 0), "does not say that this is a downgrade"),
        (change(TRANSACTION_VERSION, 2, SAFE_DOWNGRADE), "no downgrade"),
        (change(TRANSACTION_VERSION, 2, 4), "no kind 4"),
        (change("group.version", 1), "does not support this feature"),
        (change("group.version", 0, SAFE_DOWNGRADE), "does not support this feature"),
    ],
)
def test_what_is_refused(update, reason):
    with pytest.raises(BrokerError, match=reason) as refusal:
        decided(view(AT_30), update)
    assert refusal.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("others", ["brokers", "controllers"])
def test_every_node_must_support_the_level(others):
    """One that names no range supports level 0 alone."""
    for ranges in ({**RANGES, TRANSACTION_VERSION: FeatureRange(0, 1)}, {}):
        on = view(AT_30, **{others: {1: RANGES, 2: ranges}})
        with pytest.raises(BrokerError, match=f"{others[:-1]} 2 supports 0 to"):
            decided(on, change(TRANSACTION_VERSION, 2))
    assert levels(decided(on, change(TRANSACTION_VERSION, 0, SAFE_DOWNGRADE))) == {
        TRANSACTION_VERSION: 0
    }


def test_every_voter_must_have_registered():
    """QU 2.23: nobody knows what one of the static list supports before; below metadata.version 15
    none registers.
    """
    registered = view(AT_30, controllers={1: RANGES, 3: RANGES})
    update = change(TRANSACTION_VERSION, 2)
    with pytest.raises(BrokerError, match="controller 2 has not registered"):
        update_features(registered, [update], 1, RANGES, (1, 2, 3))
    assert update_features(registered, [update], 1, RANGES, (1, 3))
    old = view({METADATA_VERSION: 14})
    assert update_features(old, [change(METADATA_VERSION, 15)], 1, RANGES, (1, 2, 3))


def test_one_refusal_refuses_all():
    with pytest.raises(BrokerError, match=r"group\.version"):
        decided(view(AT_30), change(TRANSACTION_VERSION, 2), change("group.version", 1))


@pytest.mark.parametrize(
    ("before", "after", "kind", "is_possible"),
    [
        (30, 29, SAFE_DOWNGRADE, False),
        (30, 29, UNSAFE_DOWNGRADE, False),
        (29, 24, SAFE_DOWNGRADE, True),
        (29, 23, SAFE_DOWNGRADE, True),
        (29, 22, SAFE_DOWNGRADE, False),
        (22, 17, SAFE_DOWNGRADE, True),
        (21, 30, UPGRADE, True),
    ],
)
def test_a_metadata_version_goes_down_while_no_record_changed(before, after, kind, is_possible):
    on = view({METADATA_VERSION: before})
    if is_possible:
        found = decided(on, change(METADATA_VERSION, after, kind))
        assert levels(found) == {METADATA_VERSION: after}
    else:
        with pytest.raises(BrokerError, match="records"):
            decided(on, change(METADATA_VERSION, after, kind))


def test_eligible_leader_replicas_need_a_metadata_version():
    """Of the same request, too."""
    on = view({METADATA_VERSION: 22})
    with pytest.raises(BrokerError, match=r"needs metadata\.version 23"):
        decided(on, change(ELR_FEATURE, 1))
    found = decided(on, change(ELR_FEATURE, 1), change(METADATA_VERSION, 23))
    assert levels(found) == {ELR_FEATURE: 1, METADATA_VERSION: 23}


def test_eligible_leader_replicas_begin_with_the_clusters_minimum_isr():
    """The controller's own becomes the cluster's, and brokers' own ones go."""
    minimum = "min.insync.replicas"
    own = {(BROKER_RESOURCE, "3"): {minimum: "1"}, (BROKER_RESOURCE, "4"): {"x": "1"}}

    def configs(found: list[Record]) -> list[tuple[str, str | None]]:
        return [
            (each.resource_name, each.value)
            for each in found
            if isinstance(each, records.ConfigRecord)
        ]

    on = view({METADATA_VERSION: 30}, configs=own)
    assert configs(decided(on, change(ELR_FEATURE, 1))) == [("", "2"), ("3", None)]
    on = view({METADATA_VERSION: 30}, configs={(BROKER_RESOURCE, ""): {minimum: "3"}})
    assert configs(decided(on, change(ELR_FEATURE, 1))) == []


def test_the_end_of_eligible_leader_replicas_removes_them():
    found = decided(
        view({METADATA_VERSION: 30, ELR_FEATURE: 1}), change(ELR_FEATURE, 0, SAFE_DOWNGRADE)
    )
    assert found == [
        records.ClearElrRecord(topic_name=""),
        records.FeatureLevelRecord(name=ELR_FEATURE, feature_level=0),
    ]


# asked of a controller
def ask(
    fixture: Fixture, version: int, *updates: FeatureUpdateKey, validate_only: bool = False
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(feature_updates=list(updates), validate_only=validate_only)
    answer: UpdateFeaturesResponse = fixture.ask("update_features", request, version)
    return answer


@pytest.fixture
def fixture() -> Fixture:
    made = Fixture().start()
    made.join(1)
    return made


def test_a_change_is_durable_when_it_is_answered(fixture):
    """In the image, and after a restart; validation alone changes nothing."""
    down = change(ELR_FEATURE, 0, SAFE_DOWNGRADE)
    answer = ask(fixture, 1, down, validate_only=True)
    assert answer.error_code == 0 and fixture.controller.image.features[ELR_FEATURE] == 1
    answer = ask(fixture, 1, down)
    assert [(each.feature, each.error_code) for each in answer.results] == [(ELR_FEATURE, 0)]
    fixture.restart()
    assert fixture.controller.image.features == {
        METADATA_VERSION: LATEST_METADATA_VERSION,
        GROUP_VERSION: 1,
        SHARE_VERSION: 1,
        STREAMS_VERSION: 1,
        TRANSACTION_VERSION: 2,
    }


def test_version_0_says_that_a_downgrade_is_allowed(fixture):
    update = FeatureUpdateKey(feature=ELR_FEATURE, max_version_level=0, allow_downgrade=True)
    assert ask(fixture, 0, update).error_code == 0
    assert ELR_FEATURE not in fixture.controller.image.features


def test_a_refusal_changes_nothing(fixture):
    before = fixture.controller.image
    with pytest.raises(BrokerError, match="no feature was changed"):
        ask(fixture, 2, change(ELR_FEATURE, 0, SAFE_DOWNGRADE), change("other.version", 1))
    assert fixture.controller.image is before


def test_who_may_not_alter_the_cluster_is_refused(fixture):
    fixture.authorizer = type("Denying", (), {"authorize": lambda *_: False})()
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        ask(fixture, 2, change(ELR_FEATURE, 0, SAFE_DOWNGRADE))
