"""The controllers of several brokers on one machine: `twistd replog --brokers 3`.

Owns which nodes are controllers, the ports that the voters have in their settings, and the
directories of a new quorum.

1. From three brokers on nodes 1 to 3 are controllers: any one may die. Of two brokers node 1 alone
   is: a quorum of two stops with either.
2. A directory that was begun with one controller keeps it, and `controller.quorum.voters` of the
   operator says who else is to be. Changing the voters of metadata that is there would let those
   that know nothing of it elect one of them (OPERATIONS has the way).
3. A voter's port is known before any of them starts: a free one is looked for below those that the
   system gives to connections, so that it stays free until then.
4. All directories of a new quorum bear one cluster's id before the first voter starts. So an empty
   one beside records is a disk that was lost: it is refused, for its voter may have voted.
5. Node 1 asks for votes sooner than Kafka's second, where no setting says when: all start at once,
   on one machine, and are ready once one of them leads.

Ring 2. Source: our own; QU 1.21, 9.36. Not here: the other settings (`local_nodes.py`).
"""

from __future__ import annotations

import json
import posixpath
import random
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.metadata_check import holds_records
from twisted_broker.cluster.metadata_log import format_metadata
from twisted_broker.cluster.quorum_state import NAME as QUORUM_STATE
from twisted_broker.interfaces import IFileSystem, IRandom
from twisted_broker.local_nodes import (
    CONTROLLER_NODE,
    STATUS_PORT,
    VOTERS,
    metadata_directory,
)
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.log_directory import make_directory, sync_names
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.net.listeners import ConfiguredListener, parse_endpoints, plan_listeners
from twisted_broker.start_checks import StartError, try_port
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.primitives import new_uuid, uuid_text

_logger = Logger(namespace="replog")
_QUORUM = 3
_ELECTION_TIMEOUT, _FIRST_TIMEOUT_MS = "controller.quorum.election.timeout.ms", "200"
# Below those that the system gives to connections: a port stays free while its node is away.
_FREE_PORTS = (20_000, 32_000)
_TRIES = 200
ONE_CONTROLLER = (
    "node 1 is the only controller, as these directories were begun with: three of them would "
    "outlive any one (docs/OPERATIONS.md, A process for each broker)"
)


def controllers_of(values: Mapping[str, str], brokers: int, files: IFileSystem) -> tuple[int, ...]:
    """The nodes that are controllers. Raises OSError."""
    if brokers < _QUORUM:
        return (CONTROLLER_NODE,)
    voters = [each.strip().partition("@")[0] for each in values.get(VOTERS, "").split(",")]
    named = tuple(node for node in range(1, brokers + 1) if str(node) in voters)
    return named or _begun(values, files) or tuple(range(1, _QUORUM + 1))


def _begun(values: Mapping[str, str], files: IFileSystem) -> tuple[int, ...]:
    """Those of directories that hold metadata; empty where there is none."""
    is_there, every = False, tuple(range(1, _QUORUM + 1))
    for node in every:
        directory = posixpath.join(metadata_directory(values, node), METADATA_DIRECTORY)
        content = read_whole(files, posixpath.join(directory, QUORUM_STATE))
        if content is not None and (node != CONTROLLER_NODE or _names_several(content)):
            return every  # a broker's metadata log has no such file
        is_there = is_there or content is not None or holds_records(files, directory)
    return (CONTROLLER_NODE,) if is_there else ()


def _names_several(content: bytes) -> bool:
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        return len(json.loads(content)["currentVoters"]) > 1
    return False


# ports


def with_ports(configs: Iterable[BrokerConfig]) -> list[BrokerConfig]:
    """The same nodes with a free port for each port 0: a node keeps its ports when it is started
    again. Raises StartError.
    """
    taken: set[int] = set()
    found = []
    for config in configs:
        own = _with_listeners(config, taken)
        if config.integer(STATUS_PORT) == 0:
            own[STATUS_PORT] = str(_free_port(ConfiguredListener("", "127.0.0.1", 0), taken))
        found.append(BrokerConfig(own))
    return found


def _with_listeners(
    config: BrokerConfig, taken: set[int], names: Collection[str] | None = None
) -> dict[str, str]:
    """Its settings, with a free port for each port 0: of the listeners of these names, or of
    all.
    """
    own = dict(config.static)
    own["listeners"] = ",".join(
        str(
            each._replace(port=_free_port(each, taken))
            if not each.port and (names is None or each.name in names)
            else each
        )
        for each in parse_endpoints("listeners", config.names("listeners"))
    )
    return own


def _free_port(endpoint: ConfiguredListener, taken: set[int]) -> int:
    for _ in range(_TRIES):
        port = random.randrange(*_FREE_PORTS)
        with suppress(OSError):
            if port not in taken:
                try_port(endpoint._replace(port=port))
                taken.add(port)
                return port
    raise StartError(f"no free port was found for {endpoint}: give one in listeners")


def with_voters(configs: Sequence[BrokerConfig]) -> list[BrokerConfig]:
    """The same nodes, each told who votes, where several do: `controller.quorum.voters` of the
    operator, or the controllers among them, on free ports for port 0. Raises StartError.
    """
    if sum(map(is_controller, configs)) < 2 or configs[0].names(VOTERS):
        return list(configs)
    taken: set[int] = set()
    found = []
    for config in configs:
        names = {each.upper() for each in config.names("controller.listener.names")}
        own = _with_listeners(config, taken, names)
        own.pop("controller.quorum.bootstrap.servers", None)
        found.append(BrokerConfig(own))
    given = {VOTERS: ",".join(map(_voter, filter(is_controller, found)))}
    first = {_ELECTION_TIMEOUT: _FIRST_TIMEOUT_MS} | found[0].static | given
    return [BrokerConfig(first), *(BrokerConfig({**each.static, **given}) for each in found[1:])]


def is_controller(config: BrokerConfig) -> bool:
    """Whether that is a role of this node."""
    return "controller" in config.names("process.roles")


def has_lone_controller(configs: Sequence[BrokerConfig]) -> bool:
    """Whether there could be three, and nobody said that there shall be one."""
    one = sum(map(is_controller, configs)) == 1
    return one and len(configs) >= _QUORUM and not configs[0].names(VOTERS)


def _voter(config: BrokerConfig) -> str:
    plan = plan_listeners(config)
    bound = plan.controller[0]
    at = plan.advertised.get(bound.name, bound)
    reached = at._replace(host=at.host or socket.gethostname(), port=at.port or bound.port)
    return f"{config.node_id}@{str(reached).partition('://')[2]}"


# directories


def format_quorum(
    configs: Sequence[BrokerConfig],
    files_of: Callable[[BrokerConfig], IFileSystem],
    cluster_id: str | None,
    random: IRandom,
) -> None:
    """Before the first start of several voters: their metadata directories are of one cluster,
    `cluster_id`, that of those which have one, or a new one. Raises OSError, MetadataDamage.
    """
    voters = [each for each in configs if is_controller(each)]
    if len(voters) < 2:
        return
    new = []
    for config in voters:
        files, path = files_of(config), config.metadata_directory
        if holds_records(files, posixpath.join(path, METADATA_DIRECTORY)):
            return
        known = read_meta_properties(files, path) if files.is_directory(path) else None
        if known is None:
            new.append(config)
        else:
            cluster_id = cluster_id or known.cluster_id
    cluster_id = cluster_id or uuid_text(new_uuid(random.randbytes))
    for config in new:
        files, path = files_of(config), config.metadata_directory
        make_directory(files, path)
        sync_names(files, path)
        format_metadata(files, path, cluster_id, is_new=True)
        own = MetaProperties(cluster_id, config.node_id, new_uuid(random.randbytes))
        write_meta_properties(files, path, own)
        _logger.info("formatted {path} as new cluster {id}", path=path, id=cluster_id)
