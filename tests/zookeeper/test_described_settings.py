"""DescribeConfigs of a member of a ZooKeeper cluster: its own settings, as Kafka 3.9 has them."""

from __future__ import annotations

import pytest

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.config_entries import DEFAULT_SOURCE, STATIC_SOURCE, broker_entries
from twisted_broker.known_settings import zookeeper_settings


def test_a_member_describes_the_settings_of_zookeeper() -> None:
    """Each once, with its source; all need a restart."""
    given = {"zookeeper.connect": "zk1:2181/kafka", "zookeeper.session.timeout.ms": "9000"}
    config = BrokerConfig({"broker.id": "7", "inter.broker.protocol.version": "2.6", **given})
    entries = list(broker_entries(config))
    found = {entry.name: entry for entry in entries}
    assert len(found) == len(entries) and found.keys() > zookeeper_settings().keys()
    assert {
        name: (found[name].value, found[name].source)
        for name in (*given, "zookeeper.connection.timeout.ms", "inter.broker.protocol.version")
    } == {
        "zookeeper.connect": ("zk1:2181/kafka", STATIC_SOURCE),
        "zookeeper.session.timeout.ms": ("9000", STATIC_SOURCE),
        "zookeeper.connection.timeout.ms": (None, DEFAULT_SOURCE),
        "inter.broker.protocol.version": ("2.6", STATIC_SOURCE),
    }
    assert [
        (each.value, each.source) for each in found["zookeeper.session.timeout.ms"].synonyms
    ] == [("9000", STATIC_SOURCE), ("18000", DEFAULT_SOURCE)]
    assert all(found[name].read_only for name in zookeeper_settings())


@pytest.mark.parametrize(
    ("given", "value", "source"),
    [
        ({"node.id": "7"}, "7", STATIC_SOURCE),
        ({"broker.id": "7"}, "7", STATIC_SOURCE),
        ({"node.id": "7", "broker.id": "7"}, "7", STATIC_SOURCE),
        ({}, "1", DEFAULT_SOURCE),
    ],
)
def test_the_older_name_of_the_nodes_id_is_described_as_the_newer(
    given: dict[str, str], value: str, source: int
) -> None:
    """Tools that know brokers by `broker.id` look there: Kafka gives it node.id, not -1."""
    found = {entry.name: entry for entry in broker_entries(BrokerConfig(given))}
    for name in ("broker.id", "node.id"):
        assert (found[name].value, found[name].source) == (value, source)
        assert found[name].read_only


def test_others_do_not() -> None:
    """They take no effect there."""
    names = {entry.name for entry in broker_entries(BrokerConfig({"node.id": "7"}))}
    assert not [name for name in names if name.startswith("zookeeper.")]
