"""The content of the nodes of a Kafka 3.9 cluster in ZooKeeper.

Owns paths and JSON of the nodes that a broker reads or writes.

1. What is written is what 3.9 writes, field for field. What is read may have more fields.
2. Content that cannot be understood raises `ZnodeError`, which names the node.

Source: KRAFT 2.1; Kafka 3.9's `ZkData`. Not here: reading and writing (`port.py`).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from twisted_broker.image.entries import Endpoint
from twisted_broker.image.metadata_image import QuotaEntity
from twisted_broker.interfaces import TopicPartition
from twisted_broker.java_numbers import parse_double, trimmed
from twisted_broker.security.quota.quotas import CLIENT_ID, IP, QUOTA_KEYS, USER
from twisted_broker.security.sasl.scram import MECHANISMS
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.wire.messages.metadata_records import UserScramCredentialRecord

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
ISR_CHANGE = "/isr_change_notification/isr_change_"
LOG_DIR_EVENT = "/log_dir_event_notification/log_dir_event_"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
MIGRATION = "/migration"
PRODUCER_IDS_PER_BLOCK = 1000
DEFAULT_ENTITY = "<default>"
_QUOTA_TYPES = {"users": USER, "clients": CLIENT_ID, "ips": IP}
_QUOTA_ENTITIES = ([USER], [USER, CLIENT_ID], [CLIENT_ID], [IP])
T = TypeVar("T")


class ZnodeError(Exception):
    """A node holds what this broker does not understand; `str()` is one line."""


def broker_path(broker_id: int) -> str:
    """Of a broker that is alive."""
    return f"{BROKER_IDS}/{broker_id}"


def state_path(topic_partition: TopicPartition) -> str:
    """Of a partition's leader and ISR."""
    topic, number = topic_partition
    return f"/brokers/topics/{topic}/partitions/{number}/state"


def config_path(entity_type: str, name: str) -> str:
    """Of the settings of an entity."""
    return f"/config/{entity_type}/{name}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _read(path: str, data: bytes, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZnodeError(f"ZooKeeper's {path} cannot be understood: {error!r}") from error


# /brokers/ids/N


def broker_json(
    listeners: Sequence[Endpoint], rack: str | None, wall_ms: int, with_features: bool
) -> bytes:
    """`with_features`: version 5, from inter-broker protocol 2.7 on; else 4."""
    plain = next((each for each in listeners if each.security_protocol == 0), None)
    value: dict[str, Any] = {
        "version": 5 if with_features else 4,
        "host": None if plain is None else plain.host,
        "port": -1 if plain is None else plain.port,
        "jmx_port": -1,
        "timestamp": str(wall_ms),
        "endpoints": [f"{each.name}://{_host(each.host)}:{each.port}" for each in listeners],
        "listener_security_protocol_map": {
            each.name: SecurityProtocol(each.security_protocol).name for each in listeners
        },
    }
    if rack is not None:
        value["rack"] = rack
    if with_features:
        value["features"] = {}
    return _json(value)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# /cluster/id, /config


def read_cluster_id(data: bytes) -> str:
    """Of `/cluster/id`."""
    return _read(CLUSTER_ID, data, lambda value: str(value["id"]))


def read_config(path: str, data: bytes) -> dict[str, str]:
    """The settings of an entity; a node without content (Kafka made it) has none."""
    if not data:
        return {}
    return _read(
        path,
        data,
        lambda value: {str(key): str(each) for key, each in value.get("config", {}).items()},
    )


def config_json(values: Mapping[str, str]) -> bytes:
    """Of the settings of an entity."""
    return _json({"version": 1, "config": values})


def read_quotas(path: str, data: bytes) -> dict[str, float]:
    """The quotas of an entity, without what else its node holds (a user's SCRAM credentials)."""
    return _read(path, data, lambda value: quotas_of(value.get("config", {}))) if data else {}


def quotas_of(values: Mapping[str, str]) -> dict[str, float]:
    """Those among what a node has."""
    return {key: parse_double(trimmed(values[key])) for key in QUOTA_KEYS if key in values}


def read_scram(path: str, user: str, data: bytes) -> dict[int, UserScramCredentialRecord]:
    """The credentials of a user's node, by the mechanism's code; `user` as the path has it."""
    found: dict[int, UserScramCredentialRecord] = {}
    values = read_config(path, data)
    for name, mechanism in MECHANISMS.items():
        if name not in values:
            continue
        parts = dict(each.partition("=")[::2] for each in values[name].split(","))
        try:
            found[mechanism.code] = UserScramCredentialRecord(
                name=unquote(user),
                mechanism=mechanism.code,
                salt=b64decode(parts["salt"], validate=True),
                stored_key=b64decode(parts["stored_key"], validate=True),
                server_key=b64decode(parts["server_key"], validate=True),
                iterations=int(parts["iterations"]),
            )
        except (KeyError, ValueError):  # without the value: it is a secret
            raise ZnodeError(f"ZooKeeper's {path} has a {name} that is none") from None
    return found


def quota_entity(entity_type: str, name: str) -> QuotaEntity | None:
    """As an image has it, of `users/U`, `users/U/clients/C`, `clients/C` or `ips/A`; None: of
    another kind.
    """
    parts = [entity_type, *name.split("/")]
    kinds = [_QUOTA_TYPES.get(kind) for kind in parts[::2]]
    if len(parts) % 2 or kinds not in _QUOTA_ENTITIES:
        return None
    names = [None if each == DEFAULT_ENTITY else unquote(each) for each in parts[1::2]]
    return tuple(sorted(zip(map(str, kinds), names, strict=True), key=lambda pair: pair[0]))


def quota_path(entity: QuotaEntity) -> tuple[str, str]:
    """The type and name of an entity's node: of a user, a user's client, a client or an address."""
    names = {
        kind: DEFAULT_ENTITY if name is None else quote(name, safe="").replace("~", "%7E")
        for kind, name in entity
    }
    if USER not in names:
        kind = CLIENT_ID if CLIENT_ID in names else IP
        return next(each for each, of in _QUOTA_TYPES.items() if of == kind), names[kind]
    client = f"/clients/{names[CLIENT_ID]}" if CLIENT_ID in names else ""
    return "users", names[USER] + client


def config_change_json(entity_path: str) -> bytes:
    """Of an announcement: the entity whose node was written, as `TYPE/NAME`."""
    return _json({"version": 2, "entity_path": entity_path})


def read_config_change(path: str, data: bytes) -> tuple[str, str]:
    """Which entity changed: its type and name."""

    def entity(value: Any) -> tuple[str, str]:
        if "entity_path" in value:
            entity_type, _, name = value["entity_path"].partition("/")
            return entity_type, name
        return value["entity_type"], value["entity_name"]

    return _read(path, data, entity)


# /brokers/topics/T/partitions/P/state, /isr_change_notification


class PartitionStateNode(NamedTuple):
    """The content of a partition's `state`; the node's version is the partition epoch."""

    leader: int
    leader_epoch: int
    controller_epoch: int
    isr: tuple[int, ...]
    recovering: bool = False


def state_json(state: PartitionStateNode) -> bytes:
    """Of a partition's `state`."""
    value: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovering:
        value["leader_recovery_state"] = 1
    return _json(value)


def read_state(path: str, data: bytes) -> PartitionStateNode:
    """Of a partition's `state`."""
    return _read(
        path,
        data,
        lambda value: PartitionStateNode(
            int(value["leader"]),
            int(value["leader_epoch"]),
            int(value["controller_epoch"]),
            tuple(map(int, value["isr"])),
            value.get("leader_recovery_state", 0) == 1,
        ),
    )


def isr_change_json(changed: Iterable[TopicPartition]) -> bytes:
    """Of an announcement: the partitions whose `state` was written."""
    return _json(
        {
            "version": 1,
            "partitions": [{"topic": topic, "partition": number} for topic, number in changed],
        }
    )


def log_dir_event_json(broker_id: int) -> bytes:
    """A log directory of this broker failed."""
    return _json({"version": 1, "broker": broker_id, "event": 1})


# /latest_producer_id_block


def producer_block_json(broker_id: int, start: int) -> bytes:
    """The block from `start` on."""
    end = start + PRODUCER_IDS_PER_BLOCK - 1
    return _json(
        {"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)}
    )


def read_producer_block(data: bytes) -> int:
    """The end of the block that was given last."""
    return _read(PRODUCER_ID_BLOCK, data, lambda value: int(value["block_end"]))


def is_being_migrated(data: bytes) -> bool:
    """Whether `/migration` says that KRaft controllers have taken over."""
    return _read(MIGRATION, data, lambda value: int(value.get("kraft_controller_id", -1)) >= 0)
