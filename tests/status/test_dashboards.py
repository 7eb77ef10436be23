"""Published dashboards for Kafka find their series here."""

from __future__ import annotations

import pytest

from tests.status.published_dashboards import (
    DASHBOARDS,
    Scrapes,
    expressions,
    has_value,
    samples_of,
)


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_nine_of_ten_expressions_have_a_value(dashboard: str, scraped: Scrapes) -> None:
    """Issue 12: of each dashboard, not only of all together."""
    wanted = expressions(dashboard)
    missing = [each for each in wanted if not has_value(each, scraped)]
    assert len(missing) <= len(wanted) / 10, missing


def test_what_is_missing_is_known(scraped: Scrapes) -> None:
    """Each with its reason; what is served one day is to leave this list."""
    missing = {
        each
        for dashboard in DASHBOARDS
        for each in expressions(dashboard)
        if not has_value(each, scraped)
    }
    assert missing == {
        # No thread is blocked: a connection over the limit is refused.
        "kafka_network_acceptor_acceptorblockedpercent",
        # Records of the formats before 0.11 are not counted.
        "kafka_server_brokertopicmetrics_producemessageconversionspersec",
        "kafka_server_brokertopicmetrics_fetchmessageconversionspersec",
    }


def test_the_quorums_latencies_and_idle_time_are_there(scraped: Scrapes) -> None:
    """Kafka's `raft-metrics`, which no dashboard asks for."""
    for name in ("commit_latency_max", "election_latency_max", "poll_idle_ratio_avg"):
        assert has_value(f"kafka_server_raft_metrics_{name}", scraped), name


def test_an_expression_without_its_series_has_no_value() -> None:
    """The judge itself: labels count, a label that is not there is empty, NaN is no value."""
    scrape = [samples_of('a{b="c",d="0.5"} 1\nn NaN\ne 2\n')]
    for good in ("a", 'a{b="c"}', 'a{b!="x",d=~"0.*"}', 'e{b=""}', 'a{b="c"} e', 'e{b!~".+"}'):
        assert has_value(good, scrape), good
    for bad in ("x", 'a{b="x"}', 'a{b!="c"}', 'e{b!=""}', "n", "a x", 'a{b!~"c|d"}', 'a{b=~"."} n'):
        assert not has_value(bad, scrape), bad
