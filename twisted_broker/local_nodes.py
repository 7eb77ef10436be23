"""The settings of several brokers on one machine: `twistd replog --brokers 3`.

Owns what differs between them, whether they run in one process (`local_cluster.py`) or each in its
own (`process_cluster.py`): a directory of one way may be started the other way.

1. Ids 1 to N, ports P to P+N-1 (free ones for 0; the status ports likewise), directories
   `broker-<id>` under the given ones.

Source: our own. Not here: which of them are controllers (`local_quorum.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.java_numbers import is_digits
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.settings import ConfigError

CONTROLLER_NODE = 1
_MOST_PORT = 65535
STATUS_PORT = "replog.status.port"
VOTERS = "controller.quorum.voters"


def metadata_directory(values: Mapping[str, str], node_id: int) -> str:
    """Where a node's metadata is, out of the settings given for all."""
    given = values.get("metadata.log.dir") or values.get("log.dirs") or values["log.dir"]
    return posixpath.join(_listed(given)[0], f"broker-{node_id}")


def node_settings(
    values: Mapping[str, str], node_id: int, controllers: Collection[int] = (CONTROLLER_NODE,)
) -> dict[str, str]:
    """The settings of one node out of those given for all. Raises ConfigError."""
    own = dict(values)
    own["node.id"] = str(node_id)
    own["process.roles"] = "broker,controller" if node_id in controllers else "broker"
    own["log.dirs"] = ",".join(
        posixpath.join(path, f"broker-{node_id}")
        for path in _listed(values.get("log.dirs") or values["log.dir"])
    )
    if "metadata.log.dir" in values:
        own["metadata.log.dir"] = posixpath.join(values["metadata.log.dir"], f"broker-{node_id}")
    names = {
        name.upper() for name in _listed(values.get("controller.listener.names", "CONTROLLER"))
    }
    status_port = values.get(STATUS_PORT, "")
    if is_digits(status_port) and int(status_port):
        own[STATUS_PORT] = str(int(status_port) + node_id - 1)
    for name in ("listeners", "advertised.listeners"):
        if name in values:
            own[name] = ",".join(
                _shifted(name, values[name], node_id, names, node_id in controllers)
            )
    return own


def check_shared_roles(values: Mapping[str, str]) -> None:
    """Raises ConfigError for roles that several brokers of one process cannot share."""
    roles = values.get("process.roles", "broker,controller")
    if set(_listed(roles)) != {"broker", "controller"}:
        raise ConfigError(
            "process.roles",
            roles,
            "broker,controller (the default) with several --brokers: some are controllers, too",
        )


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _shifted(
    setting: str, text: str, node_id: int, controllers: set[str], is_controller: bool
) -> list[str]:
    """Each node's listeners on ports of their own; a controller's on such nodes only."""
    found = []
    for each in parse_endpoints(setting, _listed(text)):
        if each.name in controllers and not is_controller:
            continue
        port = each.port + node_id - 1 if each.port else 0
        if port > _MOST_PORT:
            raise ConfigError(setting, str(each), f"a lower port: node {node_id} would need {port}")
        found.append(str(each._replace(port=port)))
    return found


def replication_hint(config: BrokerConfig, brokers: int) -> str:
    """How a topic gets several replicas; empty where it does anyway."""
    if brokers < 2 or config.integer("default.replication.factor") > 1:
        return ""
    most = min(3, brokers)
    return (
        "topics have one replica, as in Kafka, unless they are created with more (up to "
        f"{brokers}); "
        f"--set default.replication.factor={most} makes {most} the default, also for topics "
        "that are created automatically"
    )
