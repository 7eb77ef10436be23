"""Settings and quotas that a client alters through a member of a ZooKeeper cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import capturedLogs, formatEvent

from tests.replication.fixtures import TOPIC_ID
from tests.zookeeper.test_zookeeper_broker import _DEAD, Member
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs, quotas, sasl
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.znodes import broker_path

SET, DELETE, APPEND = 0, 1, 2
CHANGES = "/config/changes"


class Serving(Member):
    """Broker 1 with a topic t, whose `retention.ms` is 5."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.ensemble.end_session(_DEAD)
        self.ensemble.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}')
        self.prepare()
        starting = ensureDeferred(self.broker.start())
        self.pass_time(1.0)
        if starting.called:  # it failed
            self.run(starting)
        update = messages.UpdateMetadataRequest(
            controller_id=2,
            controller_epoch=5,
            broker_epoch=self.ensemble.node(broker_path(1)).czxid,
            topic_states=[
                messages.UpdateMetadataTopicState(
                    topic_name="t",
                    topic_id=TOPIC_ID,
                    partition_states=[
                        messages.UpdateMetadataPartitionState(
                            partition_index=0, leader=2, replicas=[2], isr=[2]
                        )
                    ],
                )
            ],
            live_brokers=[
                messages.UpdateMetadataBroker(
                    id=node,
                    rack=None,
                    endpoints=[
                        messages.UpdateMetadataEndpoint(
                            port=9091 + node, host="127.0.0.1", listener="PLAINTEXT"
                        )
                    ],
                )
                for node in (1, 2)
            ],
        )
        assert self.ask(update, 8).error_code == ErrorCode.NONE
        self.run(starting)

    def prepare(self) -> None:
        """What else is in ZooKeeper before it starts."""

    def alter(
        self,
        kind: int,
        name: str,
        *edits: tuple[str, int, str | None],
        validate_only: bool = False,
    ) -> tuple[int, str | None]:
        """The code and message of an IncrementalAlterConfigs of one resource."""
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name=setting, config_operation=operation, value=value
                )
                for setting, operation, value in edits
            ],
        )
        request = configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=validate_only
        )
        (answer,) = self.ask(request, 1).responses
        return answer.error_code, answer.error_message

    def config(self, path: str) -> Any:
        return json.loads(self.ensemble.node(f"/config/{path}").data)

    def announced(self) -> list[Any]:
        return [
            json.loads(self.ensemble.node(f"{CHANGES}/{name}").data)
            for name in self.ensemble.children(CHANGES)
        ]

    def in_force(self, kind: int, name: str) -> Any:
        self.pass_time(1.0)
        return dict(self.broker.membership.state.image.config(kind, name))


def test_a_topics_settings_are_written_and_announced_as_kafka_does() -> None:
    """Any broker writes the whole node, and a notification beside it; then it obeys it."""
    member = Serving()
    edits = (("segment.ms", SET, "70000"), ("cleanup.policy", APPEND, "compact"))
    assert member.alter(TOPIC_RESOURCE, "t", *edits) == (ErrorCode.NONE, None)
    values = {"retention.ms": "5", "segment.ms": "70000", "cleanup.policy": "delete,compact"}
    assert member.config("topics/t") == {"version": 1, "config": values}
    assert member.ensemble.children(CHANGES) == ["config_change_0000000000"]
    assert member.announced() == [{"version": 2, "entity_path": "topics/t"}]
    assert member.in_force(TOPIC_RESOURCE, "t") == values
    assert member.alter(TOPIC_RESOURCE, "t", ("segment.ms", DELETE, None))[0] == ErrorCode.NONE
    assert "segment.ms" not in member.config("topics/t")["config"]


def test_the_older_call_replaces_all_settings() -> None:
    member = Serving()
    request = configs.AlterConfigsRequest(
        resources=[
            configs.AlterConfigsRequestAlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name="t",
                configs=[
                    configs.AlterConfigsRequestAlterableConfig(name="segment.ms", value="70000")
                ],
            )
        ]
    )
    (answer,) = member.ask(request, 2).responses
    assert answer.error_code == ErrorCode.NONE
    assert member.config("topics/t")["config"] == {"segment.ms": "70000"}


def test_settings_of_this_broker_and_of_all_take_effect() -> None:
    """The two throttles of `kafka-reassign-partitions --throttle` are a broker's own."""
    member = Serving()
    rate = "leader.replication.throttled.rate"
    assert member.alter(BROKER_RESOURCE, "1", (rate, SET, "1000"))[0] == ErrorCode.NONE
    assert member.alter(BROKER_RESOURCE, "", ("log.cleaner.threads", SET, "2"))[0] == 0
    assert member.config("brokers/1")["config"] == {rate: "1000"}
    assert member.config("brokers/<default>")["config"] == {"log.cleaner.threads": "2"}
    assert [each["entity_path"] for each in member.announced()] == [
        "brokers/1",
        "brokers/<default>",
    ]
    member.pass_time(1.0)
    live = member.broker.config
    assert (live.integer(rate), live.integer("log.cleaner.threads")) == (1000, 2)


@pytest.mark.parametrize(
    ("kind", "name", "edit", "code"),
    [
        (TOPIC_RESOURCE, "t", ("segment.ms", SET, "0"), ErrorCode.INVALID_CONFIG),
        (TOPIC_RESOURCE, "t", ("no.such", SET, "0"), ErrorCode.INVALID_CONFIG),
        (TOPIC_RESOURCE, "u", ("segment.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC_RESOURCE, "a/b", ("segment.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC_RESOURCE, "", ("segment.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER_RESOURCE, "2", ("log.cleaner.threads", SET, "2"), ErrorCode.INVALID_REQUEST),
        (BROKER_RESOURCE, "1", ("log.dirs", SET, "/x"), ErrorCode.INVALID_REQUEST),
        (
            BROKER_RESOURCE,
            "1",
            ("listener.name.plaintext.ssl.key.password", SET, "x"),
            ErrorCode.INVALID_REQUEST,
        ),
        (GROUP_RESOURCE, "g", ("consumer.session.timeout.ms", SET, "9"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_may_not_be_is_refused_and_not_written(
    kind: int, name: str, edit: tuple[str, int, str | None], code: ErrorCode
) -> None:
    member = Serving()
    before = {path: node.data for path, node in member.ensemble.nodes.items()}
    found, message = member.alter(kind, name, edit)
    assert found == code and (message or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert before == {path: node.data for path, node in member.ensemble.nodes.items()}


def test_a_dry_run_writes_nothing() -> None:
    member = Serving()
    edit = ("segment.ms", SET, "70000")
    assert member.alter(TOPIC_RESOURCE, "t", edit, validate_only=True)[0] == ErrorCode.NONE
    assert member.config("topics/t")["config"] == {"retention.ms": "5"} and not member.announced()


def test_a_change_of_another_broker_in_between_is_kept() -> None:
    """The node is written as it was read only."""
    member = Serving()
    zookeeper = member.broker.membership.zookeeper
    written: list[str] = []
    get = zookeeper.get

    def overtaken(path: str) -> Deferred[Any]:
        found: Deferred[Any] = get(path)
        if path == "/config/topics/t" and not written:
            written.append(path)
            member.ensemble.set(path, b'{"version":1,"config":{"retention.ms":"6"}}')
        return found

    zookeeper.get = overtaken
    assert member.alter(TOPIC_RESOURCE, "t", ("segment.ms", SET, "70000"))[0] == ErrorCode.NONE
    assert member.config("topics/t")["config"] == {"retention.ms": "6", "segment.ms": "70000"}


def test_a_lost_answer_is_asked_for_again() -> None:
    """Also that of the notification: without it no other broker would obey."""
    member = Serving()
    zookeeper = member.broker.membership.zookeeper
    zookeeper.lose_answers = True
    member.clock.callLater(2.0, setattr, zookeeper, "lose_answers", False)
    assert member.alter(TOPIC_RESOURCE, "t", ("segment.ms", SET, "70000"))[0] == ErrorCode.NONE
    assert member.config("topics/t")["config"]["segment.ms"] == "70000"
    assert member.announced()


def test_a_client_is_told_when_zookeeper_does_not_answer() -> None:
    member = Serving()
    member.broker.membership.zookeeper.connected = False
    found = member.alter(TOPIC_RESOURCE, "t", ("segment.ms", SET, "70000"))
    assert found[0] == ErrorCode.REQUEST_TIMED_OUT and "ZooKeeper" in str(found[1])


def test_nothing_is_written_after_kraft_controllers_took_over() -> None:
    """They would not see it."""
    member = Serving()
    member.ensemble.create("/migration", b'{"kraft_controller_id":3000}')
    found = member.alter(TOPIC_RESOURCE, "t", ("segment.ms", SET, "70000"))
    assert found[0] == ErrorCode.NOT_CONTROLLER and not member.announced()


def _quotas(*ops: tuple[str, float | None], **names: str | None) -> quotas.AlterClientQuotasRequest:
    return quotas.AlterClientQuotasRequest(
        entries=[
            quotas.AlteredEntry(
                entity=[
                    quotas.QuotaEntityData(entity_type=kind.replace("_", "-"), entity_name=name)
                    for kind, name in names.items()
                ],
                ops=[
                    quotas.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in ops
                ],
            )
        ]
    )


def test_quotas_are_written_beside_what_else_a_node_holds() -> None:
    """A user's node has its SCRAM credentials, too; whole numbers are written as such."""
    member = Serving()
    member.ensemble.create(
        "/config/users/a%20%2A~".replace("~", "%7E"),
        b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}',
    )
    rates = (("producer_byte_rate", 1000.0), ("request_percentage", 12.5))
    (done,) = member.ask(_quotas(*rates, user="a *~"), 1).entries
    assert done.error_code == ErrorCode.NONE
    assert member.config("users/a%20%2A%7E")["config"] == {
        "SCRAM-SHA-256": "salt=x",
        "producer_byte_rate": "1000",
        "request_percentage": "12.5",
    }
    (done,) = member.ask(_quotas(("producer_byte_rate", None), user="a *~"), 1).entries
    assert "producer_byte_rate" not in member.config("users/a%20%2A%7E")["config"]


@pytest.mark.parametrize(
    ("names", "path"),
    [
        ({"user": None}, "users/<default>"),
        ({"user": "u", "client_id": None}, "users/u/clients/<default>"),
        ({"client_id": "c"}, "clients/c"),
    ],
)
def test_quotas_of_each_kind_of_entity_have_their_node(
    names: dict[str, str | None], path: str
) -> None:
    """What was written is what DescribeClientQuotas of the same broker says."""
    member = Serving()
    (done,) = member.ask(_quotas(("consumer_byte_rate", 7.0), **names), 1).entries
    assert done.error_code == ErrorCode.NONE
    assert member.config(path)["config"] == {"consumer_byte_rate": "7"}
    assert member.announced() == [{"version": 2, "entity_path": path}]
    member.pass_time(1.0)
    described = member.ask(quotas.DescribeClientQuotasRequest(), 1).entries
    assert [
        ({each.entity_type: each.entity_name for each in entry.entity}, entry.values[0].value)
        for entry in described
    ] == [({kind.replace("_", "-"): name for kind, name in names.items()}, 7.0)]


def test_credentials_of_users_are_those_in_zookeeper() -> None:
    """Described, and obeyed at a login; what a node has no more goes. A credential that is none is
    no reason to forget the good one, and nothing of it is shown.
    """
    member = Serving()
    path, announced = "/config/users/a%20b", b'{"version":2,"entity_path":"users/a%20b"}'
    good = "salt=c2FsdA==,stored_key=c3RvcmVk,server_key=c2VydmVy,iterations=4096"

    def written(value: str | None) -> Any:
        config = {} if value is None else {"SCRAM-SHA-256": value}
        data = json.dumps({"version": 1, "config": config}).encode()
        if path in member.ensemble.nodes:
            member.ensemble.set(path, data)
        else:
            member.ensemble.create(path, data)
        member.ensemble.create(f"{CHANGES}/config_change_", announced, sequence=True)
        member.pass_time(1.0)
        results = member.ask(sasl.DescribeUserScramCredentialsRequest(users=None), 0).results
        return [(each.user, each.credential_infos[0].iterations) for each in results]

    assert written(good) == [("a b", 4096)]
    assert member.broker.membership.state.image.scram[1, "a b"].stored_key == b"stored"
    with capturedLogs() as logs:
        assert written("salt=secret") == [("a b", 4096)]
    lines = [formatEvent(each) for each in logs]
    assert "has a SCRAM-SHA-256 that is none" in lines[0] and "secret" not in str(lines)
    assert written(None) == []


def test_what_is_no_quota_is_refused() -> None:
    member = Serving()
    for request in (
        _quotas(("no_rate", 1.0), user="u"),
        _quotas(("consumer_byte_rate", 1.0), group="g"),
        _quotas(("consumer_byte_rate", 1.0), ip="1.2.3.4"),
    ):
        (answer,) = member.ask(request, 1).entries
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not member.announced()
