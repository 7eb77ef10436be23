"""The settings of share groups (GN 1.25-1.30)."""

import pytest

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config_validation import check_together
from twisted_broker.settings import ConfigError
from twisted_broker.share.share_group_config import duration_ms, share_group_config
from twisted_broker.share.share_partition import ShareLimits


def of_group(own, **settings):
    values = {name.replace("_", "."): value for name, value in settings.items()}
    return share_group_config(BrokerConfig(values)).of_group(own)


def test_a_group_has_the_brokers_settings_unless_it_has_its_own():
    assert of_group({}).limits == ShareLimits(2000, 5, 30_000, True)
    own = {
        "share.delivery.count.limit": "7",
        "share.record.lock.duration.ms": "20000",
        "share.partition.max.record.locks": " 150",
        "share.renew.acknowledge.enable": "false",
    }
    assert of_group(own).limits == ShareLimits(150, 7, 20_000, False)


def test_its_own_stay_within_the_brokers_bounds():
    own = {"share.delivery.count.limit": "9", "share.record.lock.duration.ms": "1000"}
    limits = of_group(own, group_share_max_delivery_count_limit="8").limits
    assert (limits.delivery_count_limit, limits.record_lock_duration_ms) == (8, 15_000)


def test_where_it_begins_and_what_it_reads():
    plain = of_group({})
    assert (plain.reset, plain.reads_committed) == ("latest", False)
    own = {
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": "by_duration:P1DT2H",
    }
    found = of_group(own)
    assert found.reads_committed
    assert (found.reset, found.reset_ms) == ("by_duration", 26 * 3_600_000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1S", 1000), ("P1D", 86_400_000), ("pt1h2m3.5s", 3_723_500), ("PT0.25S", 250)],
)
def test_durations(text, ms):
    assert duration_ms(text) == ms


def test_what_is_no_duration():
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms("1h")


@pytest.mark.parametrize(
    "values",
    [
        {"group.share.record.lock.duration.ms": "5000"},
        {"group.share.delivery.count.limit": "10", "group.share.max.delivery.count.limit": "9"},
        {"group.share.partition.max.record.locks": "5000"},
        {"group.share.max.share.sessions": "100"},
    ],
)
def test_a_start_with_a_value_outside_its_bounds_is_refused(values):
    with pytest.raises(ConfigError, match=r"allow|or more"):
        check_together(BrokerConfig(values))
