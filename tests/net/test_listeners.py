"""An address that cannot be bound is refused in one line: the setting, why, and what to change."""

from __future__ import annotations

from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from socket import EAI_NONAME, gaierror
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.error import CannotListenError

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.net.listeners import ConfiguredListener, OpenListeners, plan_listeners
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.settings import ConfigError


class Refusing:
    """A network in which this goes wrong with every address."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        return fail(CannotListenError(host, port, self._error))


def refusal(network: Any, endpoint: ConfiguredListener, is_controller: bool) -> str:
    runtime: Any = SimpleNamespace(network=network)
    problems: list[Any] = []
    ensureDeferred(OpenListeners(runtime).open(endpoint, None, endpoint, is_controller)).addErrback(
        problems.append
    )
    problems[0].trap(CannotListenError)
    return str(problems[0].value)


@pytest.mark.parametrize(
    ("error", "is_controller", "remedy"),
    [
        (
            OSError(EADDRNOTAVAIL, "not here"),
            False,
            "an address of this machine in listeners or with --host",
        ),
        (
            gaierror(EAI_NONAME, "not known"),
            False,
            "an address of this machine in listeners or with --host",
        ),
        (
            OSError(EADDRINUSE, "in use"),
            False,
            "a free port (0: any) in listeners or with --port",
        ),
        (
            OSError(EACCES, "not allowed"),
            False,
            "a port that this user may open (as a rule 1024 or more) in listeners or with --port",
        ),
        (OSError(EADDRNOTAVAIL, "not here"), True, "an address of this machine in listeners"),
    ],
    ids=[
        "no address of ours",
        "no such name",
        "in use",
        "not allowed",
        "of the controller: --host is not about it",
    ],
)
def test_the_line_names_the_setting_and_the_remedy(
    error: OSError, is_controller: bool, remedy: str
) -> None:
    line = refusal(Refusing(error), ConfiguredListener("INSIDE", "h", 9092), is_controller)
    assert (
        line
        == f"listeners: INSIDE://h:9092 cannot be listened on ({error.strerror}): give {remedy}"
    )


LISTENERS = "OUT://h:1,PLAINTEXT://h:2,CONTROLLER://h:3"
PROTOCOLS = "OUT:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "PLAINTEXT"),
        ({"listeners": "OUT://h:1,CONTROLLER://h:3"}, "OUT"),
        ({"inter.broker.listener.name": "out"}, "OUT"),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, "PLAINTEXT"),
    ],
)
def test_brokers_reach_each_other_by_the_listener_that_kafka_takes(
    settings: dict[str, str], name: str
) -> None:
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS} | settings
    assert plan_listeners(BrokerConfig(given)).inter_broker == name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol='SSL'"),
        ({"inter.broker.listener.name": "NO"}, "inter.broker.listener.name='NO'"),
        ({"listener.security.protocol.map": "OUT:PLAINTEXT"}, "add PLAINTEXT:PROTOCOL"),
    ],
)
def test_listeners_without_a_meaning_are_refused(settings: dict[str, str], words: str) -> None:
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS} | settings
    with pytest.raises(ConfigError, match=words):
        plan_listeners(BrokerConfig(given))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ssl.clent.auth", "ssl.client.auth"),
        ("listener.name.out.ssl.clent.auth", "listener.name.out.ssl.client.auth"),
        (
            "listener.name.out.plain.sasl.jass.config",
            "listener.name.out.plain.sasl.jaas.config",
        ),
        ("authorizer.clas.name", "authorizer.class.name"),
        ("authoriser.class.name", "authorizer.class.name"),
        ("super.user", "super.users"),
        ("sasl.enabeld.mechanisms", "sasl.enabled.mechanisms"),
    ],
)
def test_a_misspelt_setting_of_security_is_refused(name: str, meant: str) -> None:
    """Ignored it would leave open what it is meant to close."""
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS, name: "SECRET"}
    with pytest.raises(ConfigError) as refused:
        plan_listeners(BrokerConfig(given))
    assert f"no broker has this setting; did you mean {meant}?" in str(refused.value)
    assert f"setting {name}=" in str(refused.value) and "SECRET" not in str(refused.value)


def test_other_unknown_settings_are_left_to_a_warning() -> None:
    """Those of a file's other readers, and misspelt ones that protect nothing."""
    names = ("my.plugin.ssl", "num.partition", "confluent.metrics.enable", "zookeeper.set.acl")
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS}
    config = BrokerConfig(given | dict.fromkeys(names, "1"))
    plan_listeners(config)
    assert config.unknown() == sorted(names)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("outt.ssl.client.auth", "required", "'required' is refused: there is no listener outt"),
        ("outt.ssl.key.password", "secret", "'[hidden]' is refused: there is no listener outt"),
        ("OUT.ssl.client.auth", "required", "write one of controller, out, plaintext, in small"),
        ("out.scram-sha256.sasl.jaas.config", "x", "there is no mechanism scram-sha256; write"),
    ],
)
def test_a_setting_of_a_listener_that_is_not_there_is_refused(
    name: str, value: str, words: str
) -> None:
    """Kafka ignores it: the listener that was meant would be open."""
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS}
    with pytest.raises(ConfigError) as refused:
        plan_listeners(BrokerConfig(given | {f"listener.name.{name}": value}))
    assert f"listener.name.{name}=" in str(refused.value) and words in str(refused.value)


def test_settings_of_another_nodes_listeners_are_none_of_this_ones() -> None:
    """One file for controllers and brokers: the map has all names."""
    given = {
        "listeners": "CONTROLLER://h:3",
        "process.roles": "controller",
        "controller.listener.names": "CONTROLLER,FAR",
        "listener.security.protocol.map": PROTOCOLS,
        "listener.name.out.ssl.client.auth": "required",
        "listener.name.out.scram-sha-256.sasl.jaas.config": "x",
        "listener.name.far.controller.quota.window.num": "5",
    }
    assert plan_listeners(BrokerConfig(given)).controller


@pytest.mark.parametrize(
    ("settings", "early"),
    [
        ({}, {"CONTROLLER"}),
        ({"controller.listener.names": "CONTROLLER,NEXT"}, {"CONTROLLER", "NEXT"}),
        ({"early.start.listeners": "out, controller"}, {"OUT", "CONTROLLER"}),
        ({"early.start.listeners": "OUT"}, {"OUT"}),
        ({"early.start.listeners": ""}, set()),
    ],
)
def test_which_listeners_start_early(settings: dict[str, str], early: set[str]) -> None:
    """KIP-801, Kafka's KafkaConfig.earlyStartListeners."""
    given = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS} | settings
    if "NEXT" in settings.get("controller.listener.names", ""):
        given["listener.security.protocol.map"] += ",NEXT:PLAINTEXT"
    assert plan_listeners(BrokerConfig(given)).early == early
    given["early.start.listeners"] = "OUT,NO"
    with pytest.raises(ConfigError, match=r"early\.start\.listeners='NO'"):
        plan_listeners(BrokerConfig(given))


def test_a_broker_without_a_controller_needs_the_protocol_of_the_controllers() -> None:
    given = {
        "listeners": "PLAINTEXT://h:2",
        "process.roles": "broker",
        "controller.listener.names": "FAR,NEAR",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
    }
    with pytest.raises(ConfigError, match="add FAR:PROTOCOL"):
        plan_listeners(BrokerConfig(given))
    given["listener.security.protocol.map"] += ",FAR:PLAINTEXT"
    plan = plan_listeners(BrokerConfig(given))
    assert plan.to_controllers == "FAR"
    assert plan.protocols["FAR"] is SecurityProtocol.PLAINTEXT
