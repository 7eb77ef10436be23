"""The session, the node of a broker, and whose ensemble it is; settings and their notifications."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import capturedLogs, formatEvent

from tests.zookeeper.fixtures import Member
from tests.zookeeper.memory_zookeeper import MemoryZooKeeper
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.image.metadata_image import BROKER_RESOURCE, TOPIC_RESOURCE
from twisted_broker.installed import install
from twisted_broker.server.zookeeper_membership import kazoo_client
from twisted_broker.settings import ConfigError
from twisted_broker.simulation.memory_zookeeper import MemoryEnsemble
from twisted_broker.zookeeper.config_watch import ConfigWatch
from twisted_broker.zookeeper.kazoo_client import KazooZooKeeper
from twisted_broker.zookeeper.membership import Membership
from twisted_broker.zookeeper.protocol_versions import IBP_2_6, IBP_3_9, protocol_of

NODE = "/brokers/ids/1"
CLUSTER = "stioQhXOSmWvaywQW2g8wg"
LISTENERS = [Endpoint("PLAINTEXT", "127.0.0.1", 9092)]


class Joining(Member):
    """Broker 1 and the ensemble of a cluster."""

    def __init__(self, protocol: Any = IBP_3_9) -> None:
        super().__init__()
        self.state.broker_epoch = -1
        self.ensemble = MemoryEnsemble()
        self.ensemble.create("/cluster/id", json.dumps({"version": "1", "id": CLUSTER}).encode())
        self.ensemble.create("/config/changes", b"")
        self.zookeeper = MemoryZooKeeper(self.ensemble, self.clock)
        self.configs = ConfigWatch(self.runtime, self.zookeeper, self.state)
        self.fatal: list[str] = []
        config = BrokerConfig(
            {
                "node.id": "1",
                "zookeeper.connect": "127.0.0.1:2181",
                "process.roles": "broker",
                "zookeeper.session.timeout.ms": "6000",
            }
        )
        self.membership = Membership(
            self.runtime,
            config,
            self.zookeeper,
            self.state,
            protocol,
            self.configs.load,
            self.fatal.append,
        )

    def join(self) -> None:
        self.done(self.membership.connect(""))
        self.done(self.configs.load())
        self.done(self.membership.register(LISTENERS))

    def turns(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        for _ in range(30):
            self.clock.advance(0)

    def announce(self, entity: str, **settings: str) -> None:
        """As kafka-configs does it."""
        path = f"/config/{entity}"
        if path not in self.ensemble.nodes:
            self.ensemble.create(path, b"")
        self.ensemble.set(path, json.dumps({"version": 1, "config": settings}).encode())
        self.ensemble.create(
            "/config/changes/config_change_",
            json.dumps({"version": 2, "entity_path": entity}).encode(),
            sequence=True,
        )
        self.turns()


def test_the_node_is_as_kafka_writes_it() -> None:
    """RL 0.2: the broker epoch is the transaction that created the node."""
    joining = Joining()
    joining.join()
    node = joining.ensemble.node(NODE)
    assert node.owner == joining.zookeeper.session_id
    assert joining.membership.broker_epoch == joining.state.broker_epoch == node.czxid
    assert json.loads(node.data) == {
        "version": 5,
        "host": "127.0.0.1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": str(joining.wall_ms),
        "endpoints": ["PLAINTEXT://127.0.0.1:9092"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
    }
    old = Joining(IBP_2_6)
    old.join()
    content = json.loads(old.ensemble.node(NODE).data)
    assert content["version"] == 4 and "features" not in content


def test_a_session_that_expires_is_a_new_registration() -> None:
    joining = Joining()
    joining.join()
    first = joining.membership.broker_epoch
    joining.zookeeper.expire()
    assert NODE not in joining.ensemble.nodes
    joining.zookeeper.connect()
    joining.turns()
    assert joining.ensemble.node(NODE).owner == joining.zookeeper.session_id
    assert joining.membership.broker_epoch == joining.ensemble.node(NODE).czxid > first
    assert not joining.fatal


def test_a_session_that_ends_while_another_is_registered() -> None:
    """Simulation, ZooKeeper seed 3134: what is read anew took longer than the session lasted; the
    next one was not registered, and the broker counted as dead for ever.
    """
    joining = Joining()
    joining.join()
    reading: list[Deferred[None]] = []

    async def slow() -> None:
        reading.append(Deferred())
        await reading[-1]

    joining.membership._new_session = slow
    joining.zookeeper.expire()
    joining.zookeeper.connect()
    joining.turns()
    joining.zookeeper.expire()
    joining.zookeeper.connect()
    joining.turns()
    assert NODE not in joining.ensemble.nodes and len(reading) == 1
    reading[0].callback(None)
    joining.turns()
    assert joining.ensemble.node(NODE).owner == joining.zookeeper.session_id and len(reading) == 2


def test_a_migration_that_began_meanwhile_ends_it_at_the_next_registration() -> None:
    joining = Joining()
    joining.join()
    content = {"version": 0, "kraft_controller_id": 3000, "kraft_controller_epoch": 1}
    joining.ensemble.create("/migration", json.dumps(content).encode())
    joining.zookeeper.expire()
    joining.zookeeper.connect()
    joining.turns()
    (reason,) = joining.fatal
    assert "is being migrated to KRaft" in reason and NODE not in joining.ensemble.nodes


def test_a_connection_that_is_lost_for_a_moment_is_none() -> None:
    joining = Joining()
    joining.join()
    first = joining.membership.broker_epoch
    with capturedLogs() as logs:
        joining.zookeeper.disconnect()
        joining.zookeeper.connect()
        joining.turns()
    assert joining.membership.broker_epoch == first
    assert [formatEvent(each) for each in logs] == [
        "the connection to ZooKeeper is lost, connecting again",
        "the connection to ZooKeeper is back, in the same session",
    ]


def test_what_kazoo_says_is_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Written to the standard error it came as an error, without a word about where from."""
    client = KazooZooKeeper(None, "127.0.0.1:1", 6000)
    with capturedLogs() as logs:
        client._client.logger.warning("Connection %s", "dropped")
        client._client.logger.info("of no use to an operator")
    (line,) = logs
    assert (formatEvent(line), line["log_namespace"], line["log_level"].name) == (
        "Connection dropped",
        "kazoo",
        "warn",
    )
    assert capsys.readouterr().err == ""


def test_an_own_node_that_outlived_its_session_is_replaced() -> None:
    """The servers may end the old session a moment after they opened the new one."""
    joining = Joining()
    joining.join()
    old, owner = joining.ensemble.node(NODE), joining.zookeeper.session_id
    joining.zookeeper.expire()
    joining.ensemble.nodes[NODE] = old
    joining.zookeeper.connect()
    joining.turns()
    assert joining.ensemble.node(NODE).owner == joining.zookeeper.session_id != owner


def test_a_node_of_another_is_waited_for_and_never_removed() -> None:
    joining = Joining()
    other = MemoryZooKeeper(joining.ensemble, joining.clock)
    other.connect()
    joining.ensemble.create(NODE, b"another broker", other.session_id)
    joining.done(joining.membership.connect(""))
    found: list[Any] = []
    work: Deferred[Any] = ensureDeferred(joining.membership.register(LISTENERS))
    work.addErrback(lambda failure: found.append(str(failure.value)))
    for _ in range(30):
        joining.turns(0.5)
    assert joining.ensemble.node(NODE).data == b"another broker"
    assert found == [
        "setting broker.id='1' is refused: a broker of that id is alive in this cluster: stop it, "
        "or take another id"
    ]
    # The session of a broker that was killed ends in time.
    late = ensureDeferred(joining.membership.register(LISTENERS))
    joining.turns(2)
    other.expire()
    joining.turns(0.5)
    assert late.called and joining.ensemble.node(NODE).owner == joining.zookeeper.session_id


def test_a_write_of_the_node_whose_answer_was_lost() -> None:
    joining = Joining()
    joining.done(joining.membership.connect(""))
    joining.zookeeper.lose_answers = True
    work = ensureDeferred(joining.membership.register(LISTENERS))
    joining.turns()
    joining.zookeeper.lose_answers = False
    joining.turns(0.5)
    assert work.called
    assert joining.membership.broker_epoch == joining.ensemble.node(NODE).czxid


def refusal(joining: Joining, cluster_id: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        joining.done(joining.membership.connect(cluster_id))
    text = str(refused.value)
    assert "\n" not in text and text.startswith("setting zookeeper.connect='127.0.0.1:2181'")
    return text


def test_a_wrong_ensemble_is_one_line() -> None:
    joining = Joining()
    assert "of Kafka cluster " + CLUSTER in refusal(joining, "AAAAAAAAAAAAAAAAAAAAAA")
    joining = Joining()
    joining.ensemble.delete("/cluster/id")
    assert "no Kafka cluster at that path" in refusal(joining)


def test_no_ensemble_is_one_line() -> None:
    joining = Joining()
    joining.zookeeper.connect = lambda: None
    found: list[str] = []
    work = ensureDeferred(joining.membership.connect(""))
    work.addErrback(lambda failure: found.append(str(failure.value)))
    joining.turns(5.9)
    assert not found
    joining.turns(0.2)
    assert "no ZooKeeper answered there within 6000 ms" in found[0]


def test_a_migrating_cluster_is_refused_in_one_line() -> None:
    joining = Joining()
    content = {"version": 0, "kraft_controller_id": 3000, "kraft_controller_epoch": 1}
    joining.ensemble.create("/migration", json.dumps(content).encode())
    assert "is being migrated to KRaft" in refusal(joining)
    # Kafka makes the node before any migration, too.
    joining = Joining()
    joining.ensemble.create("/migration", b'{"version":0,"kraft_controller_id":-1}')
    joining.done(joining.membership.connect(CLUSTER))


def test_inter_broker_protocols() -> None:
    assert (protocol_of("2.6"), protocol_of("3.9-IV0")) == (IBP_2_6, IBP_3_9)
    with pytest.raises(ConfigError, match=r"2\.6 or 3\.9"):
        protocol_of("3.4")


def test_settings_come_from_their_nodes_and_by_notification() -> None:
    joining = Joining()
    joining.announce("topics/t", **{"retention.ms": "5"})
    joining.announce("brokers/<default>", **{"log.retention.ms": "7"})
    joining.join()
    image = joining.state.image
    assert image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "5"}
    assert image.config(BROKER_RESOURCE, "") == {"log.retention.ms": "7"}
    joining.announce("topics/t", **{"retention.ms": "6"})
    joining.announce("brokers/1", **{"num.replica.fetchers": "2"})
    image = joining.state.image
    assert image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "6"}
    assert image.config(BROKER_RESOURCE, "1") == {"num.replica.fetchers": "2"}
    joining.announce("topics/t")
    assert joining.state.image.config(TOPIC_RESOURCE, "t") == {}
    joining.announce("brokerloggers/1", **{"a": "DEBUG"})  # not ours
    assert not joining.ensemble.node("/config/changes").owner


def test_quotas_come_from_their_nodes_and_by_notification() -> None:
    """Names are as Kafka's Sanitizer writes them; a user's credentials are no quota."""
    joining = Joining()
    for path in ("/config/users", "/config/clients", "/config/ips", "/config/users/al%20ice"):
        joining.ensemble.create(path, b"")
    joining.ensemble.create("/config/users/al%20ice/clients", b"")
    joining.announce("users/al%20ice/clients/<default>", producer_byte_rate="5")
    joining.announce("ips/10.0.0.1", connection_creation_rate="3")
    joining.join()
    both = (("client-id", None), ("user", "al ice"))
    assert joining.state.image.client_quotas == {
        both: {"producer_byte_rate": 5.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
    }
    joining.announce("users/<default>", **{"SCRAM-SHA-256": "salt=x", "request_percentage": "12.5"})
    joining.announce("clients/c", consumer_byte_rate="7")
    joining.announce("ips/10.0.0.1")
    assert joining.state.image.client_quotas == {
        both: {"producer_byte_rate": 5.0},
        (("user", None),): {"request_percentage": 12.5},
        (("client-id", "c"),): {"consumer_byte_rate": 7.0},
    }
    joining.zookeeper.expire()
    joining.ensemble.set("/config/clients/c", b"{")
    joining.ensemble.set("/config/users/<default>", b'{"version":1,"config":{}}')
    joining.zookeeper.connect()
    joining.turns(1)
    assert joining.state.image.client_quotas == {
        both: {"producer_byte_rate": 5.0},
        (("client-id", "c"),): {"consumer_byte_rate": 7.0},
    }


def test_what_changed_between_two_sessions_is_read_again() -> None:
    joining = Joining()
    joining.join()
    joining.zookeeper.expire()
    joining.announce("topics/t", **{"retention.ms": "8"})
    joining.zookeeper.connect()
    joining.turns(1)
    assert joining.state.image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "8"}


def test_settings_of_new_topics_are_not_read_over_a_later_change() -> None:
    """RL 0.2: those of many topics take many answers, and one is altered in between: what was read
    before would stay until it is altered again.
    """
    joining = Joining()
    joining.join()
    names = [f"t{number}" for number in range(20)]
    joining.announce(f"topics/{names[0]}", **{"retention.ms": "1"})
    get, turns = joining.zookeeper.get, joining.turns

    def altered_at_the_second(path: str) -> Any:
        if path == f"/config/topics/{names[1]}":
            joining.zookeeper.get = get
            joining.turns = lambda seconds=0: None
            joining.announce(f"topics/{names[0]}", **{"retention.ms": "2"})
        return get(path)

    joining.zookeeper.get = altered_at_the_second
    loading = ensureDeferred(joining.configs.load_topics(names))
    turns()
    assert loading.called and joining.zookeeper.get is get
    assert joining.state.image.config(TOPIC_RESOURCE, names[0]) == {"retention.ms": "2"}


def test_a_node_that_cannot_be_understood_leaves_settings_as_they_were() -> None:
    joining = Joining()
    joining.join()
    joining.announce("topics/t", **{"retention.ms": "5"})
    joining.ensemble.set("/config/topics/t", b"{")
    joining.ensemble.create(
        "/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequence=True
    )
    joining.turns()
    assert joining.state.image.config(TOPIC_RESOURCE, "t") == {"retention.ms": "5"}
    joining.announce("topics/u", **{"retention.ms": "9"})
    assert joining.state.image.config(TOPIC_RESOURCE, "u") == {"retention.ms": "9"}


def test_without_zookeeper_nothing_of_it_is_loaded() -> None:
    """No cost for a node of a KRaft cluster."""
    code = (
        "import sys, twisted_broker.tap, twisted_broker.broker_service, twisted_broker.api.routes\n"
        "print([name for name in sys.modules if 'zookeeper' in name or 'kazoo' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_without_kazoo_the_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "twisted_broker.zookeeper.kazoo_client", raising=False)
    joining = Joining()
    config = BrokerConfig({"zookeeper.connect": "h:1", "process.roles": "broker"})
    with pytest.raises(ConfigError) as refused:
        kazoo_client(joining.runtime, config)
    assert str(refused.value).endswith(f" is not installed: {install('zookeeper')}")
