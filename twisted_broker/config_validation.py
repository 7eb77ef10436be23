"""Settings that are valid alone and contradict each other, and the addresses of controllers:
checked before anything is opened.

1. What Kafka refuses to start with is refused here, in one line that names a setting and what would
   be accepted.
2. What Kafka starts with and warns of is a warning: a controller elsewhere may have another session
   time-out.

Source: Kafka 4.3.1's `KafkaConfig.validateValues`, `QuorumConfig`. Not here: the range of a
single setting (its row in `config.py`), listeners (`net/listeners.py`), several controllers
(`BrokerConfig`).
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from twisted_broker.java_numbers import is_digits
from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.settings import ConfigError

if TYPE_CHECKING:
    from twisted_broker.broker_config import BrokerConfig

_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^\[\]:@\s]+):([0-9]{1,5})\Z")
_VOTERS, _BOOTSTRAP = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
_OVERRIDES = "max.connections.per.ip.overrides"
_AUTHORIZER, _SUPER_USERS = "authorizer.class.name", "super.users"
# A user who sets one of these relies on it: without the class a DENY may match no principal, and a
# change is not checked.
_GUARDS = {
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "principals are made as by Kafka's default, and ACLs must name those",
    ),
    "create.topic.policy.class.name": ("", "permissions decide who may create topics"),
    "alter.config.policy.class.name": ("", "permissions decide who may alter settings"),
}
_ASSIGNORS = frozenset({"uniform", "range"})
_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
_JOINED = re.compile(r",\s*User:")
_MOST_PORT = 65535


def check_together(config: BrokerConfig) -> None:
    """Raises ConfigError."""
    _check_roles(config)
    if ZOOKEEPER_CONNECT in config.static:
        _check_zookeeper(config)
    else:
        _check_controllers(config)
    _check_waits(config)
    _check_inter_broker(config)
    _check_connections(config)
    _check_cordoned(config)
    _check_access(config)
    _check_groups(config)
    _check_share_groups(config)


def _check_groups(config: BrokerConfig) -> None:
    protocols = config["group.coordinator.rebalance.protocols"]
    if isinstance(protocols, tuple) and "classic" not in protocols:
        raise ConfigError(
            "group.coordinator.rebalance.protocols", ",".join(protocols), "classic among them"
        )
    assignors = config["group.consumer.assignors"]
    if not isinstance(assignors, tuple) or not assignors or set(assignors) - _ASSIGNORS:
        raise ConfigError(
            "group.consumer.assignors",
            config.static.get("group.consumer.assignors", ""),
            "uniform, range or both",
            "no class is loaded by its name",
        )
    policy = str(config["group.consumer.migration.policy"])
    if policy.lower() not in _POLICIES:
        raise ConfigError("group.consumer.migration.policy", policy, ", ".join(_POLICIES))
    for kind in ("consumer", "share", "streams"):
        _check_intervals(config, kind)
    share_assignors = config["group.share.assignors"]
    if share_assignors != ("simple",):
        raise ConfigError(
            "group.share.assignors",
            config.static.get("group.share.assignors", ""),
            "simple",
            "no class is loaded by its name",
        )
    standbys, most = (
        config.integer(f"group.streams.{name}.standby.replicas") for name in ("num", "max")
    )
    if standbys > most:
        raise ConfigError(
            "group.streams.num.standby.replicas",
            standbys,
            f"group.streams.max.standby.replicas, {most}, or less",
        )


def _check_intervals(config: BrokerConfig, kind: str) -> None:
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        least, most = (config.integer(f"group.{kind}.{each}.{name}") for each in ("min", "max"))
        if most < least:
            raise ConfigError(
                f"group.{kind}.max.{name}", most, f"group.{kind}.min.{name}, {least}, or more"
            )
        value = config.integer(f"group.{kind}.{name}")
        if not least <= value <= most:
            raise ConfigError(
                f"group.{kind}.{name}",
                value,
                f"what group.{kind}.min.{name} and group.{kind}.max.{name} allow, {least} to "
                f"{most}",
            )
    session = config.integer(f"group.{kind}.session.timeout.ms")
    heartbeat = config.integer(f"group.{kind}.heartbeat.interval.ms")
    if session <= heartbeat:
        raise ConfigError(
            f"group.{kind}.heartbeat.interval.ms",
            heartbeat,
            f"less than group.{kind}.session.timeout.ms, {session}",
        )


def _check_share_groups(config: BrokerConfig) -> None:
    for name in ("delivery.count.limit", "record.lock.duration.ms", "partition.max.record.locks"):
        least, most = (config.integer(f"group.share.{each}.{name}") for each in ("min", "max"))
        value = config.integer(f"group.share.{name}")
        if not least <= value <= most:
            raise ConfigError(
                f"group.share.{name}",
                value,
                f"what group.share.min.{name} and group.share.max.{name} allow, {least} to {most}",
            )
    sessions, size = (
        config.integer(f"group.share.max.{each}") for each in ("share.sessions", "size")
    )
    if sessions < size:
        raise ConfigError(
            "group.share.max.share.sessions", sessions, f"group.share.max.size, {size}, or more"
        )


def super_users(config: BrokerConfig) -> frozenset[str]:
    """`super.users`: the principals' written forms. Raises ConfigError."""
    text = str(config[_SUPER_USERS])
    found = frozenset(each.strip() for each in text.split(";") if each.strip())
    for each in found:
        kind, _, name = each.partition(":")
        if not kind or not name:
            raise ConfigError(_SUPER_USERS, text, "a list of TYPE:NAME, such as User:a;User:b")
    return found


def _check_access(config: BrokerConfig) -> None:
    super_users(config)
    for name, (default, instead) in _GUARDS.items():
        if (text := config.static.get(name, "").strip()) not in ("", default):
            raise ConfigError(
                name, text, "", f"no class is loaded by its name; remove the setting: {instead}"
            )


def connections_by_address(config: BrokerConfig) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: the limit of each address that has one of its own, as
    sockets write the address. Raises ConfigError.
    """
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, str(config[_OVERRIDES]).split(","))):
        address, colon, count = entry.rpartition(":")
        if not colon or not is_digits(count.strip()):
            raise ConfigError(_OVERRIDES, entry, "a list of ADDRESS:COUNT")
        try:
            name = str(ip_address(address.strip().strip("[]")))
        except ValueError:
            raise ConfigError(
                _OVERRIDES, entry, "IP addresses: names of hosts are not resolved"
            ) from None
        found[name] = int(count)
    return found


def _check_connections(config: BrokerConfig) -> None:
    if not connections_by_address(config) and config.integer("max.connections.per.ip") == 0:
        raise ConfigError(
            "max.connections.per.ip", "0", f"at least 1 where {_OVERRIDES} names no address"
        )


def _check_cordoned(config: BrokerConfig) -> None:
    named = config.names("cordoned.log.dirs")
    if named != ("*",) and len(config.cordoned_directories) < len(set(named)):
        raise ConfigError("cordoned.log.dirs", ",".join(named), "entries of log.dirs, or * alone")


def warnings_for(config: BrokerConfig) -> list[str]:
    """Settings that are accepted and will hardly work: a line each."""
    interval, session = (
        config.integer("broker.heartbeat.interval.ms"),
        config.integer("broker.session.timeout.ms"),
    )
    found = []
    is_closed = not config.boolean("allow.everyone.if.no.acl.found")
    if config.text(_AUTHORIZER) and is_closed and not super_users(config):
        found.append(
            f"{_AUTHORIZER} is set and {_SUPER_USERS} is empty: on a cluster without ACLs nobody "
            f"may do anything, its brokers neither; set {_SUPER_USERS}=User:NAME;User:NAME on "
            "every node, an administrator and the names by which the nodes call each other"
        )
    joined = [each for each in sorted(super_users(config)) if _JOINED.search(each)]
    if joined:
        found.append(
            f"{_SUPER_USERS} has one user of the name {joined[0].partition(':')[2]!r}: where these "
            "are several, write ; between them, not a comma"
        )
    if interval * 2 <= session:
        return found
    return [
        *found,
        (
            f"broker.heartbeat.interval.ms={interval} is more than half of "
            f"broker.session.timeout.ms={session}: one late heartbeat fences a broker, lower it"
        ),
    ]


def _check_roles(config: BrokerConfig) -> None:
    if not config.names("process.roles"):
        raise ConfigError("process.roles", "", "any of broker, controller")


def _check_zookeeper(config: BrokerConfig) -> None:
    """A member of a ZooKeeper cluster, and of nothing else."""
    address = str(config[ZOOKEEPER_CONNECT])
    if config.names("process.roles") != ("broker",):
        raise ConfigError(
            ZOOKEEPER_CONNECT,
            address,
            "",
            "process.roles makes this a node of a KRaft cluster: remove one of the two",
        )
    hosts = address.partition("/")[0].split(",")
    if not all(_is_address(host.strip()) for host in hosts):
        raise ConfigError(ZOOKEEPER_CONNECT, address, "HOST:PORT,HOST:PORT/PATH")
    if config.boolean("zookeeper.metadata.migration.enable"):
        raise ConfigError(
            "zookeeper.metadata.migration.enable",
            "true",
            "",
            "a broker of ours takes no part in a migration to KRaft: start it as a member of the "
            "KRaft cluster afterwards",
        )


def _check_controllers(config: BrokerConfig) -> None:
    """The addresses of controllers are well formed, and a broker that is no controller has one."""
    voters, servers = config.names(_VOTERS), config.names(_BOOTSTRAP)
    for voter in voters:
        number, at, address = voter.partition("@")
        if not (is_digits(number) and at and _is_address(address)):
            raise ConfigError(_VOTERS, voter, "a list of ID@HOST:PORT")
    for server in servers:
        if not _is_address(server):
            raise ConfigError(_BOOTSTRAP, server, "a list of HOST:PORT")
    if "controller" in config.names("process.roles"):
        return
    if not (voters or servers):
        raise ConfigError(_BOOTSTRAP, "", "HOST:PORT of a controller: process.roles has none")
    for voter in voters:
        if int(voter.partition("@")[0]) == config.node_id:
            raise ConfigError(
                _VOTERS,
                voter,
                (
                    f"ids of other nodes: this node, {config.node_id}, is not a controller "
                    "(process.roles)"
                ),
            )


def _is_address(text: str) -> bool:
    match = _ADDRESS.match(text)
    return match is not None and 0 < int(match[2]) <= _MOST_PORT


def _check_waits(config: BrokerConfig) -> None:
    """A follower's fetch may wait at its leader; that must not look like a dead connection, nor
    like a follower that is behind.
    """
    wait_ms = config.integer("replica.fetch.wait.max.ms")
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if config.integer(name) < wait_ms:
            raise ConfigError(
                name, str(config[name]), f"at least replica.fetch.wait.max.ms, {wait_ms}"
            )


def _check_inter_broker(config: BrokerConfig) -> None:
    protocol = config.static.get("security.inter.broker.protocol", "")
    if protocol and config.is_set("inter.broker.listener.name"):
        raise ConfigError(
            "security.inter.broker.protocol",
            protocol,
            "no value where inter.broker.listener.name is set: remove one of the two",
        )
