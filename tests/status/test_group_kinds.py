"""Classic, consumer and share groups on the metrics and on the status page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.test_consumer_groups import Run
from tests.coordinator.test_group_coordinator import now
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.status import group_metrics
from twisted_broker.status.local_state import Groups
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition
from twisted_broker.wire.schema import run_whole

REPLICAS: Any = SimpleNamespace(partitions={})


@pytest.fixture
def run() -> Run:
    """A classic group, consumer groups Stable, Empty and Reconciling, and a share group."""
    run = Run()
    run.stable("old")
    run.member(group="new")
    run.member(group="left")
    now(run.beat("a", -1, "left"))
    run.member("a", "moving")
    run.member("b", "moving")
    now(run.coordinator.share_heartbeat(ShareHeartbeatRequest("shared", "a", 0, names=("ta",))))
    return run


def test_groups_are_counted_by_protocol_and_state(run: Run) -> None:
    """GN 8, step 1; `NumGroups` is of classic groups, as in Kafka."""
    out = Exposition()
    run_whole(group_metrics.groups(out, run.coordinator, REPLICAS, Rates()))
    text = b"".join(out.text()).decode()
    for line in (
        'kafka_server_group_coordinator_metrics_group_count{protocol="classic"} 1',
        'kafka_server_group_coordinator_metrics_group_count{protocol="consumer"} 3',
        'kafka_server_group_coordinator_metrics_group_count{protocol="share"} 1',
        'kafka_server_group_coordinator_metrics_share_group_count{state="stable"} 1',
        'kafka_server_group_coordinator_metrics_share_group_count{state="empty"} 0',
        'kafka_server_group_coordinator_metrics_consumer_group_count{state="stable"} 1',
        'kafka_server_group_coordinator_metrics_consumer_group_count{state="empty"} 1',
        'kafka_server_group_coordinator_metrics_consumer_group_count{state="reconciling"} 1',
        "kafka_coordinator_group_groupmetadatamanager_numgroups 1",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsstable 1",
        'kafka_consumergroup_members{consumergroup="moving"} 2',
        'kafka_server_group_coordinator_metrics_num_partitions{state="loading"} 0',
        # Two members joined `moving`; that `left` lost its member is no rebalance of anybody.
        "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count 4",
        "kafka_server_group_coordinator_metrics_share_group_rebalance_count 1",
        "kafka_server_group_coordinator_metrics_streams_group_rebalance_count 0",
        "kafka_server_group_coordinator_metrics_group_completed_rebalance_count 1",
    ):
        assert f"{line}\n" in text, line


def test_the_page_names_the_protocol(run: Run) -> None:
    found = Groups("", 0, 10)
    run_whole(found.gather(run.coordinator, REPLICAS))
    assert {(row.name, row.state, row.members, row.protocol) for row in found.rows} == {
        ("old", "Stable", 1, "range"),
        ("new", "Stable", 1, "consumer (KIP-848)"),
        ("left", "Empty", 0, "consumer (KIP-848)"),
        ("moving", "Reconciling", 2, "consumer (KIP-848)"),
        ("shared", "Stable", 1, "share (KIP-932)"),
    }
    assert found.rebalancing == 1
