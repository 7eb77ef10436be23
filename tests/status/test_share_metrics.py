"""Share partitions and the share coordinator under Kafka's names; the lag of a share group."""

import pytest

from tests.share.share_broker import Member, ShareBroker
from twisted_broker.status import share_metrics
from twisted_broker.status.local_state import Groups
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import BrokerCollector
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.share_groups import ShareGroupHeartbeatRequest
from twisted_broker.wire.schema import run_whole


@pytest.fixture
def broker():
    made = ShareBroker()
    yield made
    made.stop()


def scraped(broker):
    """The lines of a scrape."""
    out = Exposition()
    for _ in BrokerCollector(BrokerView(lambda: broker.broker.parts)).collect(out):
        pass
    return b"".join(out.text()).decode().splitlines()


def test_what_is_in_flight_and_what_became_of_it(broker):
    broker.produce(5)
    member = Member(broker)
    member.take(0)
    member.acknowledge("0-1 accept, 2 release, 3 reject")
    broker.pass_time(31)
    lines = scraped(broker)
    labels = '{group="g",topic="t",partition="0"}'
    acknowledged = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
    for line in (
        f"kafka_server_sharepartitionmetrics_inflightmessagecount{labels} 3",
        f"kafka_server_sharepartitionmetrics_inflightbatchcount{labels} 1",
        f"kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total{labels} 1",
        f'{acknowledged}{{ackType="Accept"}} 2',
        f'{acknowledged}{{ackType="Release"}} 1',
        f'{acknowledged}{{ackType="Reject"}} 1',
        f'{acknowledged}{{ackType="Renew"}} 0',
        "kafka_server_sharesessioncache_sharesessionscount 1",
        "kafka_server_sharesessioncache_sharepartitionscount 1",
        "replog_metrics_omitted_share_partitions 0",
    ):
        assert line in lines, line


def test_fetches_that_expire_and_sessions_that_are_lost(broker):
    broker.produce(1)
    member = Member(broker)
    member.take(0)
    member.fetch(max_wait_ms=10)
    broker.manager.connection_lost(broker.manager.sessions.get(("g", "m1")).connection)
    lines = scraped(broker)
    assert "kafka_server_delayedsharefetchmetrics_expires_total 1" in lines
    assert "kafka_server_sharesessioncache_sharesessionevictions_total 1" in lines
    name = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
    assert any(line.startswith(f'{name}{{delayedOperation="ShareFetch"') for line in lines)


def test_the_share_coordinator_says_what_it_writes(broker):
    broker.produce(2)
    member = Member(broker)
    member.take(0)
    member.acknowledge("0 accept")
    lines = scraped(broker)
    assert "kafka_server_share_coordinator_metrics_write_total 1" in lines
    assert 'kafka_server_share_coordinator_metrics_num_partitions{state="active"} 1' in lines
    assert any(
        line.startswith("kafka_server_share_coordinator_metrics_write_latency_max ")
        for line in lines
    )


def test_series_are_bounded(broker, monkeypatch):
    monkeypatch.setattr(share_metrics, "MOST_SERIES", 1)
    broker.produce(1)
    broker.produce(1, partition=1)
    Member(broker).take(0, 1)
    lines = scraped(broker)
    found = [
        line for line in lines if line.startswith("kafka_server_sharepartitionmetrics_inflightb")
    ]
    assert len(found) == 1
    assert "replog_metrics_omitted_share_partitions 1" in lines


def row_of(broker):
    """The group's on the page."""
    parts = broker.broker.parts
    found = Groups("", 0, 10, parts.share_state)
    run_whole(found.gather(parts.groups, parts.replica_manager))
    (row,) = found.rows
    return row


def test_the_lag_of_a_share_group_is_what_kafkas_tool_counts(broker):
    """From the start offset to the end, without what is finished between."""
    joins = ShareGroupHeartbeatRequest(
        group_id="g2", member_id="m1", member_epoch=0, subscribed_topic_names=["t"]
    )
    for coordinator, keys in ((0, ["g2"]),):
        broker.ask(FindCoordinatorRequest(key_type=coordinator, coordinator_keys=keys), 6)
    broker.pass_time(1)
    broker.ask(joins, 1)
    broker.settle()
    row = row_of(broker)
    assert (row.lag, row.known, row.offsets) == (0, 0, 2), "it has no offset before a first fetch"
    member = Member(broker, group="g2")
    member.take(0)
    broker.produce(10)
    assert member.take() == "0-9x1"
    member.acknowledge("0-2 accept, 5-6 accept")
    row = row_of(broker)
    assert (row.name, row.protocol) == ("g2", "share (KIP-932)")
    assert (row.lag, row.known, row.offsets) == (5, 1, 2)
