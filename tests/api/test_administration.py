"""Cluster, quorum, settings, log directories and producer ids of a whole broker in memory,
through its client's listener.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs

from tests.api.test_metadata import create, register_another
from tests.memory_broker import MemoryBroker
from twisted_broker import known_settings
from twisted_broker.api import broker_loggers, dispatch
from twisted_broker.api import configs as api_configs
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import cluster, configs, log_dirs, topics
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(num_partitions="2").start()


# cluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described(broker: MemoryBroker, version: int) -> None:
    """KIP-700, KIP-1073: live brokers; fenced ones only in version 2 and only when asked for."""
    register_another(broker)
    answer = broker.ask(
        cluster.DescribeClusterRequest(include_cluster_authorized_operations=True), version
    )
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (
        0,
        broker.broker.cluster_id,
        1,
    )
    assert answer.endpoint_type == 1, "brokers"
    assert [(each.broker_id, each.port) for each in answer.brokers] == [(1, 9092)]
    assert answer.cluster_authorized_operations > 0
    if version == 2:
        all_of_them = broker.ask(
            cluster.DescribeClusterRequest(include_fenced_brokers=True), 2
        ).brokers
        assert [(each.broker_id, each.is_fenced, each.rack) for each in all_of_them] == [
            (1, False, None),
            (5, True, "r5"),
        ]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_a_brokers_listener_does_not_name_controllers(
    broker: MemoryBroker, kind: int, code: ErrorCode
) -> None:
    """KIP-919."""
    assert broker.ask(cluster.DescribeClusterRequest(endpoint_type=kind), 1).error_code == code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_described_through_a_broker(broker: MemoryBroker, version: int) -> None:
    """KIP-595: the request is passed on to the leader of the metadata log."""
    partition = cluster.DescribeQuorumRequestPartitionData(partition_index=0)
    asked = cluster.DescribeQuorumRequestTopicData(
        topic_name="__cluster_metadata", partitions=[partition]
    )
    answer = broker.ask(cluster.DescribeQuorumRequest(topics=[asked]), version)
    found = answer.topics[0].partitions[0]
    assert (answer.error_code, found.error_code, found.leader_id, found.leader_epoch) == (
        0,
        0,
        1,
        1,
    )
    assert [voter.replica_id for voter in found.current_voters] == [1]


def test_a_node_whose_metadata_log_fails_stops(broker: MemoryBroker) -> None:
    """RL 8.1: a controller that cannot make its decisions durable must not look alive."""
    broker.broker.parts.controller.log._fail(OSError(5, "the disk is gone"))
    assert len(broker.fatal) == 1 and "the disk is gone" in broker.fatal[0]


# topics


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_and_deleted_in_every_version(
    broker: MemoryBroker, version: int
) -> None:
    """RL 8.5: each version of CreateTopics and DeleteTopics, forwarded; the log appears and
    goes.
    """
    wanted = topics.CreatableTopic(name="t", num_partitions=3, replication_factor=1)
    made = broker.ask(topics.CreateTopicsRequest(topics=[wanted]), version).topics[0]
    assert made.error_code == 0 and (made.num_partitions == 3) == (version >= 5)
    broker.pass_time(0)
    assert len(list(broker.broker.log_manager)) == 3
    down = min(version, 6)
    request = (
        topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name="t")])
        if down == 6
        else topics.DeleteTopicsRequest(topic_names=["t"])
    )
    assert broker.ask(request, down).responses[0].error_code == 0
    broker.pass_time(0)
    assert list(broker.broker.log_manager) == []


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_in_every_version(broker: MemoryBroker, version: int) -> None:
    """RL 8.5: CreatePartitions, forwarded; the new logs are there."""
    create(broker, "t", 1)
    request = topics.CreatePartitionsRequest(
        topics=[topics.CreatePartitionsTopic(name="t", count=4, assignments=None)], timeout_ms=1000
    )
    assert broker.ask(request, version).results[0].error_code == 0
    broker.pass_time(0)
    assert len(list(broker.broker.log_manager)) == 4


# settings


def describe(
    broker: MemoryBroker, kind: int, name: str, *keys: str, version: int = 4, **more: bool
) -> Any:
    resource = configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return broker.ask(
        configs.DescribeConfigsRequest(resources=[resource], **more), version
    ).results[0]


def alter(
    broker: MemoryBroker, kind: int, name: str, setting: str, value: str | None, operation: int = 0
) -> int:
    return alter_code(broker, kind, name, (setting, operation, value))


def alter_code(
    broker: MemoryBroker, kind: int, name: str, *edits: tuple[str, int, str | None]
) -> int:
    entries = [
        configs.IncrementalAlterConfigsRequestAlterableConfig(
            name=setting, config_operation=operation, value=value
        )
        for setting, operation, value in edits
    ]
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=entries
    )
    code: int = (
        broker.ask(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        .responses[0]
        .error_code
    )
    broker.pass_time(0)
    return code


def test_every_setting_of_a_topic_is_described(broker: MemoryBroker) -> None:
    """KIP-133: all rows of the table, each from its own source."""
    create(broker, "t", 1)
    assert alter(broker, TOPIC, "t", "retention.ms", "77") == 0
    found = {entry.name: entry for entry in describe(broker, TOPIC, "t").configs}
    assert set(found) == {row.name for row in TOPIC_SETTINGS.values() if not row.internal}
    assert (
        found["retention.ms"].value,
        found["retention.ms"].config_source,
        found["retention.ms"].read_only,
    ) == ("77", DYNAMIC_TOPIC, False)
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == (
        "1073741824",
        DEFAULT,
    )
    assert found["cleanup.policy"].value == "delete"


def test_synonyms_name_what_a_value_overrides(broker: MemoryBroker) -> None:
    """KIP-226: the value in force first, then what would take its place; the cluster's dynamic
    value over the file's over the default.
    """
    create(broker, "t", 1)
    assert alter(broker, BROKER, "", "message.max.bytes", "5000") == 0
    assert alter(broker, BROKER, "1", "message.max.bytes", "6000") == 0
    assert alter(broker, TOPIC, "t", "max.message.bytes", "7000") == 0
    (entry,) = describe(broker, TOPIC, "t", "max.message.bytes", include_synonyms=True).configs
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("max.message.bytes", "7000", DYNAMIC_TOPIC),
        ("message.max.bytes", "6000", DYNAMIC_BROKER),
        ("message.max.bytes", "5000", DYNAMIC_DEFAULT),
        ("message.max.bytes", "1048588", DEFAULT),
    ]
    assert alter(broker, TOPIC, "t", "max.message.bytes", None, 1) == 0
    (entry,) = describe(broker, TOPIC, "t", "max.message.bytes").configs
    assert (entry.value, entry.config_source, entry.synonyms) == ("6000", DYNAMIC_BROKER, [])


def test_every_setting_of_a_broker_is_described(broker: MemoryBroker) -> None:
    """KIP-226: what needs a restart is read-only; documentation and type only when asked for."""
    found = {
        entry.name: entry
        for entry in describe(broker, BROKER, "1", include_documentation=True).configs
    }
    rows = (*BROKER_SETTINGS.values(), *known_settings.broker_settings().values())
    assert set(found) == {row.name for row in rows if not row.internal}
    assert found["ssl.key.password"].is_sensitive and found["ssl.key.password"].value is None
    assert (found["num.io.threads"].value, found["num.io.threads"].config_source) == ("8", DEFAULT)
    assert (
        found["num.partitions"].value,
        found["num.partitions"].config_source,
        found["num.partitions"].read_only,
    ) == ("2", STATIC, True)
    assert not found["message.max.bytes"].read_only
    assert (
        found["message.max.bytes"].documentation == BROKER_SETTINGS["message.max.bytes"].doc
        and found["message.max.bytes"].config_type == 3
    )
    assert describe(broker, BROKER, "1", "num.partitions").configs[0].documentation is None


def test_the_addresses_that_clients_get_are_described(broker: MemoryBroker) -> None:
    """Nobody set advertised.listeners: it follows from listeners, with the ports that are really
    open.
    """
    (entry,) = describe(broker, BROKER, "1", "advertised.listeners").configs
    assert (entry.value, entry.config_source, entry.read_only) == (
        "PLAINTEXT://127.0.0.1:9092",
        STATIC,
        True,
    )


@pytest.mark.parametrize("version", range(5))
def test_settings_are_described_in_every_version(broker: MemoryBroker, version: int) -> None:
    """DescribeConfigs v0 says is_default where later versions say the source."""
    create(broker, "t", 1)
    alter(broker, TOPIC, "t", "retention.ms", "77")
    result = describe(broker, TOPIC, "t", "retention.ms", "segment.ms", version=version)
    found = {entry.name: entry for entry in result.configs}
    assert found["retention.ms"].value == "77" and set(found) == {"retention.ms", "segment.ms"}
    if version == 0:
        assert (found["retention.ms"].is_default, found["segment.ms"].is_default) == (False, True)


def test_a_resource_that_is_named_again_is_looked_up_once(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered as often as it is named, and is in memory once."""
    made: list[Any] = []
    real = api_configs._result
    monkeypatch.setattr(
        api_configs, "_result", lambda *given: made.append(given[2]) or real(*given)
    )
    settings = configs.DescribeConfigsResource(
        resource_type=BROKER, resource_name="1", configuration_keys=None
    )
    one = configs.DescribeConfigsResource(
        resource_type=BROKER, resource_name="1", configuration_keys=["log.dirs"]
    )
    request = configs.DescribeConfigsRequest(resources=[settings, one, settings, settings, one])
    results = broker.ask(request, 4).results
    sizes = [len(each.configs) for each in results]
    assert sizes[0] > 100 and sizes == [sizes[0], 1, sizes[0], sizes[0], 1] and len(made) == 2


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "in/valid", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_are_not_described(
    broker: MemoryBroker, kind: int, name: str, code: ErrorCode
) -> None:
    """Kafka's ConfigHelper: the resource's own error."""
    assert describe(broker, kind, name).error_code == code


def test_the_clusters_defaults_are_what_was_set(broker: MemoryBroker) -> None:
    """Broker resource "" has no values but the dynamic ones."""
    alter(broker, BROKER, "", "message.max.bytes", "5000")
    entries = describe(broker, BROKER, "").configs
    assert [(e.name, e.value, e.config_source) for e in entries] == [
        ("message.max.bytes", "5000", DYNAMIC_DEFAULT),
        ("min.insync.replicas", "1", DYNAMIC_DEFAULT),
    ]


def test_groups_and_client_metrics_are_described(broker: MemoryBroker) -> None:
    """KIP-848, KIP-714: all settings of such a resource, its own before what stands behind them; a
    resource without a name is none.
    """
    alter(broker, GROUP, "g", "consumer.session.timeout.ms", " 50000 ")
    found = {
        entry.name: entry for entry in describe(broker, GROUP, "g", include_synonyms=True).configs
    }
    own, other = found["consumer.session.timeout.ms"], found["share.isolation.level"]
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    assert (own.value, own.config_source, other.value, other.config_source) == (
        "50000",
        8,
        "read_uncommitted",
        DEFAULT,
    )
    alter(broker, CLIENT_METRICS, "m", "interval.ms", "1000")
    entries = describe(broker, CLIENT_METRICS, "m").configs
    assert [(e.name, e.value, e.config_source) for e in entries] == [
        ("interval.ms", "1000", 7),
        ("match", "", DEFAULT),
        ("metrics", "", DEFAULT),
    ]
    for kind in (GROUP, CLIENT_METRICS):
        assert describe(broker, kind, "").error_code == ErrorCode.INVALID_REQUEST


def test_texts_are_described_as_kafka_does(broker: MemoryBroker) -> None:
    """The typed value's text; as it was given it is in a broker's synonyms, among the cluster's
    defaults, and in CreateTopics' answer.
    """
    given = topics.CreatableTopicConfig(name="preallocate", value="TRUE")
    wanted = topics.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, configs=[given]
    )
    (made,) = broker.ask(topics.CreateTopicsRequest(topics=[wanted]), 7).topics
    assert [e.value for e in made.configs if e.name == "preallocate"] == ["TRUE"]
    broker.pass_time(0)
    assert describe(broker, TOPIC, "t", "preallocate").configs[0].value == "true"
    alter(broker, BROKER, "", "background.threads", " 5 ")
    assert describe(broker, BROKER, "", "background.threads").configs[0].value == " 5 "
    (entry,) = describe(broker, BROKER, "1", "background.threads", include_synonyms=True).configs
    assert (entry.value, entry.synonyms[0].value) == ("5", " 5 ")


NAME = "twisted_broker.api.dispatch"
SET, DELETE = 0, 1


@pytest.fixture
def loggers() -> Iterator[None]:
    """Levels as they were: they are the process's."""
    yield
    edits = [
        configs.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=1)
        for name in broker_loggers.levels()
        if name != "root"
    ]
    root = configs.IncrementalAlterConfigsRequestAlterableConfig(name="root", value="TRACE")
    broker_loggers.change([*edits, root], True)


@pytest.mark.usefixtures("loggers")
def test_levels_of_loggers_act_at_once(broker: MemoryBroker) -> None:
    """KIP-412: a logger's lines below its level are dropped; deleted, it follows the root again."""

    def lines() -> list[LogLevel]:
        with capturedLogs() as told:
            dispatch._logger.info("one")
            dispatch._logger.warn("two")
        return [event["log_level"] for event in told]

    def level() -> str | None:
        return describe(broker, LOGGER, "1", NAME).configs[0].value

    assert len(lines()) == 2 and level() == "TRACE"
    assert alter_code(broker, LOGGER, "1", (NAME, SET, "WARN")) == 0
    assert lines() == [LogLevel.warn] and level() == "WARN"
    assert alter_code(broker, LOGGER, "1", ("root", SET, "ERROR"), (NAME, DELETE, None)) == 0
    assert lines() == [] and level() == "ERROR"


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(
    ("name", "edit", "code"),
    [
        ("1", (NAME, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        ("1", (NAME, SET, None), ErrorCode.INVALID_REQUEST),
        ("1", (NAME, 2, "INFO"), ErrorCode.INVALID_REQUEST),
        ("1", ("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ("1", ("no.such.logger", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        ("2", (NAME, SET, "INFO"), ErrorCode.INVALID_REQUEST),
        ("", (NAME, SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_levels_that_are_refused(
    broker: MemoryBroker, name: str, edit: tuple[str, int, str | None], code: ErrorCode
) -> None:
    """Nothing of a resource that is refused is changed."""
    before = broker_loggers.levels()
    assert alter_code(broker, LOGGER, name, ("root", SET, "WARN"), edit) == code
    assert broker_loggers.levels() == before


def test_a_brokers_settings_are_changed_through_itself(broker: MemoryBroker) -> None:
    """Another broker's, registered or not, are INVALID_REQUEST; the rest is passed on."""
    edit = configs.IncrementalAlterConfigsRequestAlterableConfig
    create(broker, "t", 1)
    wanted = [
        (BROKER, "2", "message.max.bytes", "5000"),
        (TOPIC, "t", "retention.ms", "5"),
        (BROKER, "x", "message.max.bytes", "5000"),
        (LOGGER, "1", NAME, "TRACE"),
    ]
    resources = [
        configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[edit(name=key, value=value)]
        )
        for kind, name, key, value in wanted
    ]
    for version in (0, 1):
        answer = broker.ask(configs.IncrementalAlterConfigsRequest(resources=resources), version)
        assert {(e.resource_type, e.resource_name): e.error_code for e in answer.responses} == {
            (BROKER, "2"): ErrorCode.INVALID_REQUEST,
            (BROKER, "x"): ErrorCode.INVALID_REQUEST,
            (LOGGER, "1"): 0,
            (TOPIC, "t"): 0,
        }
    broker.pass_time(0)
    assert describe(broker, TOPIC, "t", "retention.ms").configs[0].value == "5"
    older = configs.AlterConfigsRequestAlterConfigsResource(resource_type=BROKER, resource_name="2")
    answer = broker.ask(configs.AlterConfigsRequest(resources=[older]), 2)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST]


def test_the_older_alter_configs_goes_through(broker: MemoryBroker) -> None:
    """AlterConfigs v0-2, forwarded."""
    create(broker, "t", 1)
    for version in range(3):
        entry = configs.AlterConfigsRequestAlterableConfig(
            name="retention.ms", value=str(100 + version)
        )
        resource = configs.AlterConfigsRequestAlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[entry]
        )
        assert (
            broker.ask(configs.AlterConfigsRequest(resources=[resource]), version)
            .responses[0]
            .error_code
            == 0
        )
        broker.pass_time(0)
        assert describe(broker, TOPIC, "t", "retention.ms").configs[0].value == str(100 + version)


def test_resources_are_listed(broker: MemoryBroker) -> None:
    """KIP-1142: version 0 knows client metrics only, version 1 all kinds or those asked for."""
    create(broker, "t", 1)
    assert broker.ask(configs.ListConfigResourcesRequest(), 0).config_resources == []
    listed = broker.ask(configs.ListConfigResourcesRequest(), 1).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [
        (TOPIC, "t"),
        (BROKER, "1"),
        (LOGGER, "1"),
    ]
    assert (
        broker.ask(configs.ListConfigResourcesRequest(resource_types=[77]), 1).error_code
        == ErrorCode.UNSUPPORTED_VERSION
    )


@pytest.mark.parametrize("version", [3, 4])
def test_features_that_old_clients_cannot_read_are_left_out(
    broker: MemoryBroker, version: int
) -> None:
    """KAFKA-17492: below version 4 a feature whose lowest level is 0 is not named."""
    asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    found = {
        each.name: (each.min_version, each.max_version)
        for each in broker.ask(asked, version).supported_features
    }
    known = SUPPORTED_FEATURES
    assert any(low == 0 for low, _ in known.values())
    assert found == {k: v for k, v in known.items() if version == 4 or v[0] > 0}


# log directories and producer ids


@pytest.mark.parametrize("version", range(6))
def test_log_directories_are_described(broker: MemoryBroker, version: int) -> None:
    """KIP-113, KIP-827: sizes of all partitions or of those asked for; the volume's size from
    version 4 on.
    """
    create(broker, "t", 2)
    (result,) = broker.ask(log_dirs.DescribeLogDirsRequest(topics=None), version).results
    assert (result.error_code, result.log_dir) == (0, "/data")
    (topic,) = result.topics
    assert [
        (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
        for p in topic.partitions
    ] == [(0, 0, 0, False), (1, 0, 0, False)]
    assert (result.total_bytes > 0) == (version >= 4)
    wanted = [log_dirs.DescribableLogDirTopic(topic="t", partitions=[1])]
    (result,) = broker.ask(log_dirs.DescribeLogDirsRequest(topics=wanted), version).results
    assert [p.partition_index for p in result.topics[0].partitions] == [1]


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(broker: MemoryBroker, version: int) -> None:
    """KIP-98, KIP-360: ids differ, epoch 0; an id that the producer had before does not matter."""
    known = {"producer_id": 5, "producer_epoch": 3} if version >= 3 else {}
    answers = [
        broker.ask(InitProducerIdRequest(transactional_id=None, **known), version) for _ in range(3)
    ]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


def test_a_refused_transactional_id_has_no_producer(broker: MemoryBroker) -> None:
    """A refusal carries neither an id nor an epoch."""
    answer = broker.ask(InitProducerIdRequest(transactional_id=""), 4)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        ErrorCode.INVALID_REQUEST,
        -1,
        -1,
    )


@pytest.mark.parametrize("half", [{"producer_id": 5}, {"producer_epoch": 0}])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_id_without_epoch_is_no_producer(
    broker: MemoryBroker, version: int, half: dict[str, int]
) -> None:
    """KIP-360: id and epoch come together or not at all."""
    answer = broker.ask(InitProducerIdRequest(transactional_id=None, **half), version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        ErrorCode.INVALID_REQUEST,
        -1,
        -1,
    )
