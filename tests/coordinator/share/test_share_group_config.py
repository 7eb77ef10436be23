"""The settings of share groups' members: the broker's, and a group's own between its bounds (GN
1.25, 1.28).
"""

import pytest

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config_validation import check_together
from twisted_broker.coordinator.share.decision import ShareGroupSettings
from twisted_broker.coordinator.share_group_config import share_group_config
from twisted_broker.settings import ConfigError


def config(**values):
    return BrokerConfig({"node.id": "1", **{k.replace("_", "."): v for k, v in values.items()}})


def test_defaults_are_kafkas():
    found = share_group_config(config())
    assert found.of_group({}) == ShareGroupSettings(45_000, 5_000, 1_000, 200, 30_000)


def test_a_groups_own_values_lie_between_the_brokers_bounds():
    found = share_group_config(config()).of_group(
        {
            "share.session.timeout.ms": "50000",
            "share.heartbeat.interval.ms": "99999",
            "share.assignment.interval.ms": "0",
            "consumer.session.timeout.ms": "46000",
        }
    )
    assert found == ShareGroupSettings(50_000, 15_000, 0, 200, 30_000)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"group_share_assignors": "uniform"}, "group.share.assignors"),
        ({"group_share_assignors": "simple,simple2"}, "group.share.assignors"),
        ({"group_share_min_session_timeout_ms": "70000"}, "group.share.max.session.timeout.ms"),
        ({"group_share_session_timeout_ms": "61000"}, "group.share.session.timeout.ms"),
        ({"group_share_heartbeat_interval_ms": "4000"}, "group.share.heartbeat.interval.ms"),
    ],
)
def test_what_no_broker_starts_with(values, line):
    """GN 1.26."""
    with pytest.raises(ConfigError, match=line):
        check_together(config(**values))
