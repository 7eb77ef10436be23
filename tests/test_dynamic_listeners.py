"""Listeners are added and removed while a broker runs (KIP-226)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError

from tests.memory_broker import LISTENERS, MemoryBroker
from twisted_broker.broker_config import ListenerConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PlainConnector
from twisted_broker.net.sasl_connector import SaslConnector
from twisted_broker.security.sasl.settings import client_login
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from twisted_broker.wire.messages.metadata import MetadataRequest

MAP = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
OUTSIDE = f"{LISTENERS},OUTSIDE://127.0.0.1:9094"
LOGIN = f"{LISTENERS},LOGIN://127.0.0.1:9095"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
SASL = {
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": USERS,
}


def alter(broker: MemoryBroker, values: dict[str, str], name: str = "1", operation: int = 0) -> Any:
    """The result for the broker; what follows of it has happened."""
    configs = [
        AlterableConfig(name=key, config_operation=operation, value=value)
        for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=4, resource_name=name, configs=configs)
    answer = broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    broker.pass_time(1)
    return answer.responses[0]


def altered(broker: MemoryBroker, **values: str) -> None:
    named = {name.replace("__", "."): value for name, value in values.items()}
    result = alter(broker, named)
    assert result.error_code == 0, result.error_message


def addresses(broker: MemoryBroker, port: int) -> list[tuple[str, int]]:
    """Of the brokers, as clients of that port see them."""
    answer = broker.ask(MetadataRequest(topics=None), 12, port)
    return [(each.host, each.port) for each in answer.brokers]


@pytest.fixture
def broker() -> Any:
    made = MemoryBroker(**{"listener.security.protocol.map": MAP}).start()
    yield made
    made.stop()


def test_a_new_listener_serves_and_is_registered(broker: MemoryBroker) -> None:
    altered(broker, listeners=OUTSIDE)
    assert addresses(broker, 9094) == [("127.0.0.1", 9094)]
    assert addresses(broker, 9092) == [("127.0.0.1", 9092)]
    registered = broker.broker.broker_server.observer.image.brokers[1].listeners
    assert registered["OUTSIDE"] == Endpoint("OUTSIDE", "127.0.0.1", 9094, 0)
    assert (
        broker.broker.broker_server.lifecycle.broker_epoch
        == broker.broker.broker_server.observer.image.brokers[1].epoch
    )


def test_a_listener_that_is_removed_ends_with_its_connections(broker: MemoryBroker) -> None:
    altered(broker, listeners=OUTSIDE)
    connection = broker.connection(9094)
    broker.run(connection.send(MetadataRequest(topics=[]), 12))
    altered(broker, listeners=LISTENERS)
    assert not connection.connected
    with pytest.raises(ConnectionRefusedError):
        broker.ask(MetadataRequest(topics=[]), 12, 9094)
    assert set(broker.broker.broker_server.observer.image.brokers[1].listeners) == {"PLAINTEXT"}
    assert addresses(broker, 9092) == [("127.0.0.1", 9092)]


def test_a_listener_moves_to_another_port_and_back_with_its_counts(broker: MemoryBroker) -> None:
    altered(broker, listeners=OUTSIDE)
    addresses(broker, 9094)
    altered(broker, listeners=OUTSIDE.replace("9094", "9096"))
    assert addresses(broker, 9096) == [("127.0.0.1", 9096)]
    assert ("127.0.0.1", 9094) not in broker.network.ports
    counts = [
        each.requests for each in broker.broker.bound_routes() if each.route.name == "Metadata"
    ]
    assert sum(counts) == 2


def test_two_listeners_swap_their_ports(broker: MemoryBroker) -> None:
    both = f"{OUTSIDE},LOGIN://127.0.0.1:9095"
    result = alter(broker, SASL | {"listeners": both})
    assert result.error_code == 0, result.error_message
    swapped = f"{LISTENERS},OUTSIDE://127.0.0.1:9095,LOGIN://127.0.0.1:9094"
    altered(broker, listeners=swapped)
    assert addresses(broker, 9095) == [("127.0.0.1", 9095)]


def login(broker: MemoryBroker, password: str) -> BrokerConnection:
    values = {
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="ann" password="{password}";',
    }
    from twisted_broker.broker_config import BrokerConfig

    config = ListenerConfig(BrokerConfig(values), "CLIENT")
    connector = SaslConnector(
        PlainConnector(SecurityProtocol.SASL_PLAINTEXT, config),
        client_login(config, "sasl.mechanism.inter.broker.protocol"),
        broker.clock,
        "test",
    )
    return BrokerConnection(broker.runtime, "127.0.0.1", 9095, "test", connector=connector)


def test_a_listener_with_sasl_comes_with_its_users(broker: MemoryBroker) -> None:
    result = alter(broker, SASL | {"listeners": LOGIN})
    assert result.error_code == 0, result.error_message
    connection = login(broker, "secret")
    assert broker.run(connection.send(MetadataRequest(topics=[]), 12)).brokers[0].port == 9095
    connection.close()


def test_the_login_of_an_open_listener_does_not_change(broker: MemoryBroker) -> None:
    assert alter(broker, SASL | {"listeners": LOGIN}).error_code == 0
    other = {"listener.name.login.plain.sasl.jaas.config": USERS.replace("secret", "other")}
    result = alter(broker, other)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "listener LOGIN is open" in result.error_message
    assert "other" not in result.error_message.replace("another", "")
    # Removed and added again in another form.
    altered(broker, listeners=LISTENERS)
    assert alter(broker, other).error_code == 0
    altered(broker, listeners=LOGIN)
    connection = login(broker, "other")
    broker.run(connection.send(MetadataRequest(topics=[]), 12))
    connection.close()


def test_a_listener_that_was_added_is_there_after_a_restart(broker: MemoryBroker) -> None:
    altered(broker, listeners=OUTSIDE)
    broker.stop()
    settings = {"listener.security.protocol.map": MAP}
    again = MemoryBroker(files=broker.files, seed=8, **settings).start()
    assert addresses(again, 9094) == [("127.0.0.1", 9094)]
    again.stop()


def test_an_older_alter_configs_without_it_closes_it(broker: MemoryBroker) -> None:
    altered(broker, listeners=OUTSIDE)
    resource = AlterConfigsRequestAlterConfigsResource(
        resource_type=4, resource_name="1", configs=[]
    )
    answer = broker.ask(AlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0
    broker.pass_time(1)
    assert ("127.0.0.1", 9094) not in broker.network.ports


def test_what_is_advertised_by_hand_stays(broker: MemoryBroker) -> None:
    settings = {
        "listener.security.protocol.map": MAP,
        "advertised.listeners": "PLAINTEXT://broker.example:9092",
    }
    named = MemoryBroker(**settings).start()
    altered(named, listeners=OUTSIDE)
    assert addresses(named, 9092) == [("broker.example", 9092)]
    assert addresses(named, 9094) == [("127.0.0.1", 9094)]
    named.stop()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"listeners": "CONTROLLER://127.0.0.1:9093"}, "at least one listener of the broker"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092"},
            "named in controller.listener.names",
        ),
        (
            {"listeners": OUTSIDE.replace("9093", "9097")},
            "of the controller as they are",
        ),
        (
            {"listeners": "OUTSIDE://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093"},
            "by which other brokers connect",
        ),
        ({"listeners": f"{LISTENERS},OTHER://127.0.0.1:9094"}, "OTHER has none"),
        ({"listeners": f"{LISTENERS},OUTSIDE://127.0.0.1:7000"}, "cannot be listened on"),
        ({"listeners": LOGIN}, "sasl.enabled.mechanisms"),
        ({"listeners": OUTSIDE.replace(":9094", "")}, "NAME://HOST:PORT"),
        (
            {"listener.security.protocol.map": MAP.replace("PLAINTEXT:PLAINTEXT", "PLAINTEXT:SSL")},
            "speaks PLAINTEXT",
        ),
        (
            {"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"},
            "listener PLAINTEXT is open",
        ),
    ],
)
def test_what_could_not_be_opened_is_refused_and_nothing_is_stored(
    broker: MemoryBroker, values: dict[str, str], reason: str
) -> None:
    taken: Deferred[Any] = broker.network.listen("127.0.0.1", 7000, None)
    assert taken.called
    before = dict(broker.broker.broker_server.observer.image.config(4, "1"))
    result = alter(broker, values)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert reason in result.error_message
    assert broker.broker.broker_server.observer.image.config(4, "1") == before
    assert addresses(broker, 9092) == [("127.0.0.1", 9092)]


@pytest.mark.parametrize("name", ["listeners", "listener.security.protocol.map"])
def test_they_are_one_brokers_own(broker: MemoryBroker, name: str) -> None:
    result = alter(broker, {name: OUTSIDE if name == "listeners" else MAP}, name="")
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "set it for one broker" in result.error_message


def test_a_stop_while_one_opens_leaves_no_port(broker: MemoryBroker) -> None:
    slow: Deferred[Any] = Deferred()
    listen = broker.network.listen

    def later(host: str, port: int, factory: Any) -> Any:
        return slow if port == 9094 and opened else listen(host, port, factory)

    opened: list[bool] = []
    broker.network.listen = later
    change = broker.broker.sockets.dynamic
    can_bind = change._can_bind

    async def bound(endpoint: Any) -> None:
        await can_bind(endpoint)
        opened.append(True)

    change._can_bind = bound
    altered(broker, listeners=OUTSIDE)
    broker.stop()
    assert ("127.0.0.1", 9094) not in broker.network.ports
    assert slow.called  # it was cancelled
