"""The settings table: every row parses its own default, refuses what lies outside, and topic
values come from the right layer.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker import known_settings
from twisted_broker.broker_config import BrokerConfig, LiveConfig
from twisted_broker.config import (
    BROKER_SETTINGS,
    REFUSED,
    SAMPLE_VALUES,
    THROTTLED_REPLICAS,
    TIERED_SETTINGS,
    TOPIC_SETTINGS,
    is_secret,
)
from twisted_broker.config_validation import check_together
from twisted_broker.log_config import LogConfig, check_topic_overrides, topic_config, topic_value
from twisted_broker.settings import ConfigError, parse_properties, text_of


@pytest.mark.parametrize(
    "row", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=lambda row: row.name
)
def test_every_default_is_a_value_that_its_own_row_accepts(row):
    """A default that its row refused could never be written back by AlterConfigs."""
    if row.default is None:
        assert row.nullable
    else:
        assert row.parse(text_of(row.default)) == row.default


def test_topic_settings_name_broker_settings_that_exist():
    """A topic default is read from broker rows by name; a typing slip there must not survive."""
    assert [
        name
        for row in TOPIC_SETTINGS.values()
        for name, _ in row.broker
        if name not in BROKER_SETTINGS.keys() | known_settings.broker_settings().keys()
    ] == []


def test_topic_defaults_equal_the_broker_defaults_behind_them():
    """With nothing set, a topic has the values that its own rows state (Kafka's LogConfig
    defaults).
    """
    built = topic_config(BrokerConfig({}), {})
    assert built == LogConfig()
    for row in TOPIC_SETTINGS.values():
        if row.name in TIERED_SETTINGS | THROTTLED_REPLICAS:
            assert topic_value(row.name, BrokerConfig({}), {}) == row.default
        elif not row.internal:
            value = getattr(built, row.name.replace(".", "_"))
            assert (tuple(sorted(value)) if isinstance(value, frozenset) else value) == row.default


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({}, 604800000),
        ({"log.retention.hours": "2"}, 7200000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_wins(static, expected):
    """log.retention.ms over .minutes over .hours; -1 is 'never' in every unit."""
    assert topic_config(BrokerConfig(static), {}).retention_ms == expected


def test_layers():
    """The topic's own value, then this broker's dynamic one, then all brokers', then the file,
    then the default (RL 1.11).
    """
    config = BrokerConfig(
        {"message.max.bytes": "10"},
        cluster={"message.max.bytes": "20"},
        broker={"message.max.bytes": "30"},
    )
    assert topic_config(config, {"max.message.bytes": "40"}).max_message_bytes == 40
    assert topic_config(config, {}).max_message_bytes == 30
    assert (
        topic_config(config.with_dynamic({"message.max.bytes": "20"}, {}), {}).max_message_bytes
        == 20
    )
    assert topic_config(config.with_dynamic({}, {}), {}).max_message_bytes == 10


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("node.id", "-1", "from 0"),
        ("node.id", "one", "whole number"),
        ("log.cleanup.policy", "compact,shrink", "any of compact, delete"),
        ("compression.gzip.level", "10", "from 1 to 9, or -1"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.segment.bytes", "99999999999", "to 2147483647 (bytes)"),
        ("offsets.topic.segment.bytes", "1048575", "from 1048576 "),
        ("log.cleaner.min.cleanable.ratio", "nan", "from 0 to 1"),
        ("authorizer.class.name", "X", "one of (empty), org.apache.kafka.metadata.auth"),
    ],
)
def test_a_wrong_value_names_setting_value_and_range(name, value, words):
    """a wrong value is an error that names the setting, the value and the range, in one line."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({name: value})
    line = str(caught.value)
    assert name in line and value in line and words in line and "\n" not in line


def test_unknown_and_inert_names_get_different_lines():
    """What Kafka knows and we need not is not called unknown."""
    config = BrokerConfig({"num.network.threads": "3", "no.such.setting": "1", "node.id": "7"})
    assert config.unknown() == ["no.such.setting"]
    assert config.without_effect() == ["num.network.threads"]
    assert config.node_id == 7
    assert not (known_settings.broker_settings().keys() & BROKER_SETTINGS.keys())
    assert not (REFUSED.keys() & BROKER_SETTINGS.keys())


def test_a_listener_has_settings_of_its_own():
    """`listener.name.NAME.MECHANISM.x` before `listener.name.NAME.x` before `x`, dynamic before
    static within each, and a later change counts.
    """
    file = {
        "max.connections": "7",
        "listener.name.inside.max.connections": "5",
        "sasl.jaas.config": "all",
        "listener.name.inside.sasl.jaas.config": "inside",
        "listener.name.inside.plain.sasl.jaas.config": "plain",
    }
    live = LiveConfig(BrokerConfig(file))
    inside, other = live.listener_config("INSIDE"), live.listener_config("OTHER")
    assert (inside["max.connections"], other["max.connections"]) == (5, 7)
    assert inside.overrides("max.connections") and not other.overrides("max.connections")
    jaas = [inside.text("sasl.jaas.config", each) for each in ("PLAIN", "SCRAM-SHA-256", "")]
    assert jaas == ["plain", "inside", "inside"]
    assert other.text("sasl.jaas.config", "PLAIN") == "all"
    assert live.unknown() == [] and inside["connections.max.reauth.ms"] == 0
    live.replace(live.with_dynamic({"max.connections": "8"}, {}))
    assert (inside["max.connections"], other["max.connections"]) == (5, 8)
    live.replace(live.with_dynamic({}, {"listener.name.inside.max.connections": "6"}))
    assert (inside["max.connections"], other["max.connections"]) == (6, 7)


def test_a_listeners_setting_is_checked_and_a_wrong_name_is_named():
    with pytest.raises(ConfigError, match=r"listener\.name\.inside\.max\.connections='many'"):
        BrokerConfig({"listener.name.inside.max.connections": "many"})
    names = ["listener.name.INSIDE.max.connections", "listener.name.inside.no.such.setting"]
    assert BrokerConfig(dict.fromkeys(names, "1")).unknown() == names


def test_a_name_without_a_row_may_hold_a_secret() -> None:
    names = ("sasl.jaas.config", "listener.name.a.ssl.key.password", "my.plugin.password")
    wrong = ("listener.name.A.ssl.key.password", "listener.name.a.ssl.key.pasword")
    assert all(map(is_secret, names + wrong))
    assert not any(map(is_secret, ("num.io.threads", "listener.name.a.ssl.client.auth")))


@pytest.mark.parametrize(
    "row",
    [
        *known_settings.broker_settings().values(),
        *known_settings.group_settings().values(),
        *known_settings.client_metrics_settings().values(),
    ],
    ids=lambda row: row.name,
)
def test_what_kafka_knows_beside_them_is_sound(row):
    """Every default is a value that its row accepts, and what stands behind a group's setting is
    the broker's.
    """
    assert row.parse(text_of(row.default)) == row.default
    assert all(
        name in BROKER_SETTINGS or name in known_settings.broker_settings()
        for name, _ in row.broker
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("num.io.threads", "-1"), ("log.cleaner.threads", "abc"), ("ssl.client.auth", "perhaps")],
)
def test_a_wrong_value_of_what_has_no_effect_is_refused(name, value):
    """Kafka would not start with it; a value that is fine is kept, a default is known."""
    with pytest.raises(ConfigError, match=name):
        BrokerConfig({name: value})
    config = BrokerConfig({"num.io.threads": " 9 "})
    assert (config["num.io.threads"], config.is_set("num.io.threads")) == (9, True)
    assert (config["background.threads"], config.is_set("background.threads")) == (10, False)
    with pytest.raises(KeyError):
        config["no.such.setting"]


def test_sample_values_are_settings():
    """A start without --config applies values of rows that exist."""
    assert BrokerConfig(SAMPLE_VALUES).integer("group.initial.rebalance.delay.ms") == 0


def test_topic_overrides_are_checked_by_name_and_value():
    """CreateTopics and AlterConfigs refuse what no topic has and what is out of range."""
    broker = BrokerConfig({})
    check_topic_overrides({"retention.ms": "-1", "cleanup.policy": "compact,delete"}, broker)
    for name, value in (
        ("retention.hours", "1"),
        ("retention.ms", "-2"),
        ("min.insync.replicas", ""),
        ("min.compaction.lag.ms", str(2**63 - 1)),
    ):
        with pytest.raises(ConfigError, match=name):
            check_topic_overrides(
                {name: value}, BrokerConfig({"log.cleaner.max.compaction.lag.ms": "9"})
            )


def test_properties_file_forms():
    """The forms that Java's Properties.load reads: separators, comments, continuations, escapes."""
    text = "a = b\n# x\n  ! y\nc:d\\\n   e\nf g h\nk\\=1=2\nu=\\u0041\\t\nempty=\n\nlast\\\\=1"
    assert parse_properties(text) == {
        "a": "b",
        "c": "de",
        "f": "g h",
        "k=1": "2",
        "u": "A\t",
        "empty": "",
        "last\\": "1",
    }


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z.]{0,20}", fullmatch=True),
        st.from_regex(r"[A-Za-z0-9/:,._-]{0,20}", fullmatch=True),
    )
)
def test_plain_properties_round_trip(pairs):
    """Names and values without special characters come back as written."""
    assert parse_properties("\n".join(f"{name}={value}" for name, value in pairs.items())) == pairs


def test_broker_id_is_the_older_name_of_node_id():
    """A file of before KRaft keeps its number, as under Kafka 4.3; two different numbers are
    refused.
    """
    config = BrokerConfig({"broker.id": "3"})
    assert config.node_id == 3 and config.unknown() == [] and config.without_effect() == []
    assert BrokerConfig({"broker.id": "3", "node.id": "3"}).node_id == 3
    with pytest.raises(ConfigError, match=r"broker\.id='3' .* node\.id, 4"):
        BrokerConfig({"broker.id": "3", "node.id": "4"})
    with pytest.raises(ConfigError, match=r"broker\.id='x'"):
        BrokerConfig({"broker.id": "x"})


@pytest.mark.parametrize(
    ("voters", "words"),
    [
        ("2@b:9093,3@c:9093", "the id of this node, 1"),
        ("2@b:9093", "the id of this node, 1"),
    ],
)
def test_a_controller_is_not_started_beside_the_voters_that_it_leaves_out(voters, words):
    """Alone it would decide for a cluster that has others; Kafka refuses a controller that is no
    voter.
    """
    with pytest.raises(ConfigError, match=f"controller.quorum.voters.*{words}"):
        BrokerConfig({"controller.quorum.voters": voters})


def test_a_lone_voter_and_a_broker_of_other_controllers_are_fine():
    """What Kafka's sample files say of one node, and of a broker without a controller."""
    assert (
        BrokerConfig({"node.id": "7", "controller.quorum.voters": "7@localhost:9093"}).node_id == 7
    )
    assert (
        BrokerConfig(
            {"process.roles": "broker", "controller.quorum.voters": "7@a:9093,8@b:9093"}
        ).node_id
        == 1
    )


def test_the_metadata_may_have_a_directory_of_its_own() -> None:
    """As in Kafka: one of `log.dirs`, or another."""
    inside = {"log.dirs": "/a,/b/", "metadata.log.dir": "/b", "process.roles": "broker,controller"}
    check_together(BrokerConfig(inside))
    check_together(BrokerConfig(inside | {"metadata.log.dir": "/elsewhere"}))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, "it takes a list of ADDRESS:COUNT"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:-1"}, "it takes a list of ADDRESS:COUNT"),
        ({"max.connections.per.ip.overrides": "localhost:5"}, "names of hosts are not resolved"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip.overrides names no address"),
    ],
)
def test_limits_of_addresses_are_checked_at_the_start(values: dict[str, str], named: str) -> None:
    """Kafka's forms, but for names; no connections at all only beside addresses that may."""
    with pytest.raises(ConfigError, match=named):
        check_together(BrokerConfig(values))
    check_together(
        BrokerConfig(
            {
                "max.connections.per.ip": "0",
                "max.connections.per.ip.overrides": "10.0.0.1:1, ::1:2",
            }
        )
    )


@pytest.mark.parametrize(
    ("name", "stored", "obeyed"),
    [
        ("segment.bytes", "2097152", "2097152"),
        ("segment.bytes", "100000", "1048576"),
        ("retention.ms", "-2", "-1"),
        ("min.cleanable.dirty.ratio", "1.5", "1.0"),
        ("min.cleanable.dirty.ratio", "nan", None),
        ("segment.bytes", "many", None),
        ("compression.type", "brotli", None),
        ("unclean.leader.election.enable", "maybe", None),
    ],
)
def test_of_a_value_that_another_version_let_through_the_nearest_one_is_obeyed(
    name: str, stored: str, obeyed: str | None
) -> None:
    """Apache Kafka 3.9 takes segments of 14 bytes and more, 4.x of 1 MiB."""
    assert TOPIC_SETTINGS[name].nearest(stored) == obeyed
    config = topic_config(BrokerConfig({}), {name: stored, "of.another.version": "1"})
    expected = topic_config(BrokerConfig({}), {} if obeyed is None else {name: obeyed})
    assert config == expected


def test_stored_settings_of_a_broker_that_it_refuses_keep_none_of_the_others() -> None:
    stored = {
        "log.segment.bytes": "100000",
        "compression.type": "brotli",
        "log.retention.ms": "1000",
        "listener.name.plaintext.max.connections": "x",
        "of.another.version": "1",
    }
    config, refused = BrokerConfig({"log.segment.bytes": "2097152"}).with_stored(
        stored, {"num.io.threads": "x"}
    )
    assert config["log.segment.bytes"] == 1048576 and config["log.retention.ms"] == 1000
    assert config["compression.type"] == "producer" and config.broker == {}
    assert [line.partition(" is refused")[0] for line in refused] == [
        "setting log.segment.bytes='100000'",
        "setting compression.type='brotli'",
        "setting listener.name.plaintext.max.connections",
        "setting num.io.threads='x'",
    ]
