"""IncrementalAlterConfigs and AlterConfigs as the controller answers them."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import Fixture, short_at_the_second
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs as configs_messages
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
NOT_VALID = ErrorCode.INVALID_REQUEST
INVALID_CONFIG = ErrorCode.INVALID_CONFIG
FINE = {
    TOPIC: "file.delete.delay.ms",
    METRICS: "metrics",
    GROUP: "share.delivery.count.limit",
}


@pytest.fixture
def ready(fixture: Fixture) -> Fixture:
    """One live broker, one topic with one setting."""
    fixture.join(1)
    made = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value="5")],
    )
    fixture.ask("create_topics", CreateTopicsRequest(topics=[made]), 7)
    return fixture


def change(
    fixture: Fixture,
    kind: int,
    name: str,
    *edits: tuple[str, int, str | None],
    validate_only: bool = False,
    twice: bool = False,
) -> int:
    entries = [
        configs_messages.IncrementalAlterConfigsRequestAlterableConfig(
            name=n, config_operation=o, value=v
        )
        for n, o, v in edits
    ]
    resource = configs_messages.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=entries
    )
    request = configs_messages.IncrementalAlterConfigsRequest(
        resources=[resource] * (2 if twice else 1), validate_only=validate_only
    )
    code: int = fixture.ask("incremental_alter_configs", request, 1).responses[0].error_code
    return code


def test_a_topics_settings_are_set_deleted_and_edited(ready: Fixture) -> None:
    """KIP-339: SET, DELETE; APPEND and SUBTRACT work on lists, from the default when nothing is
    set.
    """
    assert (
        change(ready, TOPIC, "t", ("segment.ms", SET, "1000"), ("retention.ms", DELETE, None)) == 0
    )
    assert ready.controller.image.config(TOPIC, "t") == {"segment.ms": "1000"}
    assert change(ready, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == 0
    assert ready.controller.image.config(TOPIC, "t")["cleanup.policy"] == "delete,compact"
    assert change(ready, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert ready.controller.image.config(TOPIC, "t")["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("kind", "name", "edit", "code"),
    [
        (TOPIC, "nope", ("segment.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ("segment.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "a b", ("segment.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("segment.ms", SET, "-4"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("segment.ms", SET, "1_000"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", SET, "\xa01000"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("min.cleanable.dirty.ratio", SET, "0_1.0"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("segment.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("segment.ms", 7, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("segment.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "1", ("log.dirs", SET, "/x"), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ("message.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "１", ("message.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("message.max.bytes", SET, "1_000_000"), ErrorCode.INVALID_REQUEST),
        (
            BROKER,
            "",
            ("log.cleaner.io.max.bytes.per.second", SET, "inf"),
            ErrorCode.INVALID_REQUEST,
        ),
        (BROKER, "99", ("message.max.bytes", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "", ("message.max.bytes", SET, "many"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("num.io.threads", SET, "-1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.cleaner.threads", SET, "abc"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("queued.max.requests", SET, "9"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("remote.storage.enable", SET, "true"), INVALID_CONFIG),
        (TOPIC, "t", ("local.retention.ms", SET, "-3"), INVALID_CONFIG),
        (METRICS, "m", ("interval.ms", SET, "99"), ErrorCode.INVALID_REQUEST),
        (METRICS, "m", ("interval.ms", SET, "x"), INVALID_CONFIG),
        (METRICS, "m", ("interval.ms", SET, "1_000"), INVALID_CONFIG),
        (METRICS, "m", ("interval.ms", SET, "9999999999"), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "client_id=["), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "age=3"), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "client_id="), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "client_id=" + "(" * 9_000), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "client_id=a{99999999999}"), INVALID_CONFIG),
        (METRICS, "m", ("match", SET, "client_id=a=b"), INVALID_CONFIG),
        (METRICS, "m", ("what", SET, "3"), ErrorCode.INVALID_REQUEST),
        (METRICS, "", ("interval.ms", SET, "100"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "10"), INVALID_CONFIG),
        (GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "15001"), INVALID_CONFIG),
        (GROUP, "g", ("streams.num.standby.replicas", SET, "3"), INVALID_CONFIG),
        (GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:P"), INVALID_CONFIG),
        (GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:P٣D"), INVALID_CONFIG),
        (GROUP, "g", ("what", SET, "3"), INVALID_CONFIG),
        (GROUP, "", ("share.delivery.count.limit", SET, "3"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("min.insync.replicas", SET, "2"), ErrorCode.INVALID_CONFIG),
        (BROKER, "", ("min.insync.replicas", DELETE, None), ErrorCode.INVALID_CONFIG),
        (99, "x", ("y", SET, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_are_refused(
    ready: Fixture, kind: int, name: str, edit: tuple[str, int, str | None], code: ErrorCode
) -> None:
    """RL 1.11: a refused change leaves the resource as it was, whatever else it asked for."""
    before = ready.controller.image.configs
    assert change(ready, kind, name, edit) == code
    assert (
        change(
            ready,
            kind,
            name,
            (FINE.get(kind, "max.connections"), SET, "3"),
            edit,
        )
        == code
    )
    assert ready.controller.image.configs == before


def test_the_compaction_lags_must_fit_each_other(ready: Fixture) -> None:
    """Kafka's LogConfig.validateValues: the least lag above the most is INVALID_CONFIG, whichever
    of the two is the topic's own.
    """
    low, high = "min.compaction.lag.ms", "max.compaction.lag.ms"
    assert change(ready, TOPIC, "t", (low, SET, "10"), (high, SET, "9")) == INVALID_CONFIG
    assert change(ready, TOPIC, "t", (low, SET, "10"), (high, SET, "10")) == 0
    assert change(ready, TOPIC, "t", (low, SET, "11")) == INVALID_CONFIG
    assert change(ready, TOPIC, "t", (low, DELETE, None)) == 0
    assert change(ready, BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "20")) == 0
    assert change(ready, TOPIC, "t", ("segment.ms", SET, "9")) == INVALID_CONFIG
    settings = [
        CreatableTopicConfig(name=low, value="2"),
        CreatableTopicConfig(name=high, value="1"),
    ]
    wanted = CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=settings)
    answer = ready.ask("create_topics", CreateTopicsRequest(topics=[wanted]), 7)
    assert answer.topics[0].error_code == INVALID_CONFIG


def test_what_is_only_stored(ready: Fixture) -> None:
    """Settings of groups, of client metrics and of tiered storage, and those of brokers that
    nothing obeys, are kept as they were given.
    """
    for kind, name, key, value in (
        (GROUP, "g", "consumer.session.timeout.ms", "50000"),
        (GROUP, "g", "share.auto.offset.reset", "by_duration:PT1H"),
        (METRICS, "m", "match", "client_id=a.*,client_software_name=b"),
        (METRICS, "m", "interval.ms", " 5000 "),
        (TOPIC, "t", "local.retention.bytes", "4"),
        (TOPIC, "t", "preallocate", "TRUE"),
        (BROKER, "", "num.io.threads", "9"),
        (BROKER, "1", "background.threads", " 5 "),
    ):
        assert change(ready, kind, name, (key, SET, value)) == 0
        assert ready.controller.image.config(kind, name)[key] == value
    assert change(ready, METRICS, "m", ("metrics", APPEND, "a.b")) == 0
    assert ready.controller.image.config(METRICS, "m")["metrics"] == "a.b"


def test_a_brokers_compaction_lags_must_fit_each_other(ready: Fixture) -> None:
    """As a topic's."""
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    assert change(ready, BROKER, "", (low, SET, "9"), (high, SET, "8")) == INVALID_CONFIG
    assert change(ready, BROKER, "", (low, SET, "9")) == 0
    assert change(ready, BROKER, "1", (high, SET, "8")) == INVALID_CONFIG


def test_validate_only_and_the_same_value_write_nothing(ready: Fixture) -> None:
    """Invariant 2: only what differs is written."""
    before = ready.controller.image
    assert change(ready, TOPIC, "t", ("segment.ms", SET, "9"), validate_only=True) == 0
    assert change(ready, TOPIC, "t", ("retention.ms", SET, "5")) == 0
    assert ready.controller.image is before


def test_a_resource_or_setting_twice_is_refused(ready: Fixture) -> None:
    """Kafka's ConfigAdminManager: which of the two should count?"""
    assert (
        change(ready, TOPIC, "t", ("segment.ms", SET, "9"), twice=True) == ErrorCode.INVALID_REQUEST
    )
    assert (
        change(ready, TOPIC, "t", ("segment.ms", SET, "9"), ("segment.ms", SET, "8"))
        == ErrorCode.INVALID_REQUEST
    )
    entries = [
        configs_messages.AlterConfigsRequestAlterableConfig(name="segment.ms", value=value)
        for value in ("9", "8")
    ]
    resource = configs_messages.AlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=entries
    )
    answer = ready.ask(
        "alter_configs", configs_messages.AlterConfigsRequest(resources=[resource]), 2
    )
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_the_older_call_replaces_everything(ready: Fixture) -> None:
    """AlterConfigs: settings that are not named go."""
    entries = [configs_messages.AlterConfigsRequestAlterableConfig(name="segment.ms", value="7")]
    resource = configs_messages.AlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=entries
    )
    answer = ready.ask(
        "alter_configs", configs_messages.AlterConfigsRequest(resources=[resource]), 2
    )
    assert answer.responses[0].error_code == 0
    assert ready.controller.image.config(TOPIC, "t") == {"segment.ms": "7"}


def test_a_dynamic_default_acts_on_the_next_decision(ready: Fixture) -> None:
    """RL 1.11: settings act without a restart: the cluster's minimum ISR decides who is
    eligible.
    """
    ready.join(2)
    made = CreatableTopic(name="u", num_partitions=1, replication_factor=2)
    ready.ask("create_topics", CreateTopicsRequest(topics=[made]), 7)
    assert change(ready, BROKER, "", ("min.insync.replicas", SET, "2")) == 0
    ready.advance(9.5)
    partition = ready.controller.image.topics_by_name["u"].partitions[0]
    assert sorted(partition.elr) == [1, 2]


def test_another_minimum_isr_takes_back_the_eligible_replicas(ready: Fixture) -> None:
    """KIP-966: the ELR was measured by the old minimum."""
    ready.advance(9.5)
    assert ready.controller.image.topics_by_name["t"].partitions[0].elr == (1,)
    assert change(ready, TOPIC, "t", ("min.insync.replicas", SET, "2")) == 0
    assert ready.controller.image.topics_by_name["t"].partitions[0].elr == ()


def let_nobody_lead(ready: Fixture) -> None:
    """Broker 1 left, and is back where only an unclean election makes it the leader."""
    ready.advance(9.5)
    assert change(ready, TOPIC, "t", ("min.insync.replicas", SET, "2")) == 0
    ready.join(1)


def test_an_election_that_finds_no_descriptor_is_made_later(
    ready: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting that allows it is in the log by then, and answered for."""
    let_nobody_lead(ready)
    short_at_the_second(monkeypatch, MetadataLog, "append")
    assert change(ready, TOPIC, "t", ("unclean.leader.election.enable", SET, "true")) == 0
    ready.advance(0.5)
    assert ready.controller.image.topics_by_name["t"].partitions[0].leader == 1


def test_an_election_finds_no_descriptor_for_a_while(
    ready: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else need happen: no broker comes, no setting changes."""
    let_nobody_lead(ready)
    with monkeypatch.context() as patched:
        calls = short_at_the_second(patched, MetadataLog, "append", times=1000)
        assert change(ready, TOPIC, "t", ("unclean.leader.election.enable", SET, "true")) == 0
        ready.advance(1.0)
        ready.beat(1, ready.controller.image.brokers[1].epoch)
    assert len(calls) > 2
    assert ready.controller.image.topics_by_name["t"].partitions[0].leader == -1
    ready.advance(1.0)
    assert ready.controller.image.topics_by_name["t"].partitions[0].leader == 1


def test_without_a_leader_another_minimum_isr_leaves_only_an_unclean_election(
    ready: Fixture,
) -> None:
    """RL 8.3, KIP-966 as in Kafka 4.3.1: the last known leader is forgotten, too; its return
    elects nobody until an unclean election is allowed.
    """
    ready.advance(9.5)
    assert change(ready, TOPIC, "t", ("min.insync.replicas", SET, "2")) == 0
    forgotten = ready.controller.image.topics_by_name["t"].partitions[0]
    assert (forgotten.leader, forgotten.isr, forgotten.elr, forgotten.last_known_elr) == (
        -1,
        (),
        (),
        (),
    )
    ready.join(1)
    assert ready.controller.image.topics_by_name["t"].partitions[0].leader == -1
    assert change(ready, TOPIC, "t", ("unclean.leader.election.enable", SET, "true")) == 0
    again = ready.controller.image.topics_by_name["t"].partitions[0]
    assert (again.leader, again.leader_recovery_state) == (1, 1)
