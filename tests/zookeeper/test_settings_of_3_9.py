"""What differs in 3.9: a ZooKeeper cluster's member has the bounds and defaults of its brokers."""

from __future__ import annotations

import pytest

from tests.log.batches import NOW_MS, batch, open_log
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.config_entries import topic_entries
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log_config import check_topic_overrides, obeyed_topic_settings, topic_config
from twisted_broker.settings import LONG_MAX, ConfigError
from twisted_broker.wire.errors import BrokerError, ErrorCode

MEMBER = {"broker.id": "7", "zookeeper.connect": "zk:2181"}
HOUR_MS = 3_600_000


def member(**given: str) -> BrokerConfig:
    return BrokerConfig(MEMBER | {name.replace("_", "."): value for name, value in given.items()})


def test_a_small_segment_is_obeyed() -> None:
    """Taken for 1 MiB, a batch got in that no follower can append: the ISR fell to ours alone."""
    values, refused = obeyed_topic_settings(member(), {"segment.bytes": "4096"})
    settings = topic_config(member(), values)
    assert settings.segment_bytes == 4096 and not refused
    log = open_log(MemoryFileSystem(), settings=settings)
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(batch(5000), 0, NOW_MS)
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    for _ in range(3):
        log.append_as_leader(batch(3000), 0, NOW_MS)
    assert len(list(log.segments)) == 3
    assert topic_config(member(log_segment_bytes="65536"), {}).segment_bytes == 65536


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "14"),
        ("message.format.version", "0.10.2"),
        ("message.timestamp.difference.max.ms", "5000"),
        ("message.downconversion.enable", "false"),
    ],
)
def test_what_3_9_has_is_taken_and_described(name: str, value: str) -> None:
    """Only by a member: Kafka 4 has none of these."""
    check_topic_overrides({name: value}, member())
    assert {each.name: each.value for each in topic_entries(member(), {name: value})}[name] == value
    with pytest.raises(ConfigError):
        check_topic_overrides({name: value}, BrokerConfig({"node.id": "7"}))


def test_a_record_may_be_as_far_in_the_future_as_3_9_allows() -> None:
    assert topic_config(member(), {}).message_timestamp_after_max_ms == LONG_MAX
    assert topic_config(BrokerConfig({}), {}).message_timestamp_after_max_ms == HOUR_MS


@pytest.mark.parametrize(
    ("own", "before", "after"),
    [
        ({"message.timestamp.difference.max.ms": "5"}, 5, 5),
        (
            {
                "message.timestamp.difference.max.ms": "5",
                "message.timestamp.before.max.ms": "7",
            },
            7,
            5,
        ),
        ({"message.timestamp.after.max.ms": "9"}, LONG_MAX, 9),
    ],
)
def test_the_older_bound_of_times_holds_where_the_newer_are_not_set(
    own: dict[str, str], before: int, after: int
) -> None:
    found = topic_config(member(), own)
    assert (found.message_timestamp_before_max_ms, found.message_timestamp_after_max_ms) == (
        before,
        after,
    )


def test_the_settings_of_a_3_9_file_do_not_end_the_start() -> None:
    """`log.segment.bytes` below 1 MiB, and the older name of the key of delegation tokens."""
    config = member(log_segment_bytes="65536", **{"delegation.token.master.key": "k"})
    assert config.integer("log.segment.bytes") == 65536 and not config.unknown()
    config = config.with_dynamic({"log.message.timestamp.difference.max.ms": "5"}, {})
    assert topic_config(config, {}).message_timestamp_before_max_ms == 5


def test_a_refused_broker_id_is_named_as_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"broker\.id='-1'"):
        member(broker_id="-1")
