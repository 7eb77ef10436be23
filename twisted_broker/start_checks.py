"""Contradictions between options, files and the machine, found before anything opens.

1. Each contradiction is one line that names both sides and what to do.
2. Nothing is made, locked or listened on afterwards: what is tried is given back.
3. A start that is refused here is refused before `twistd` leaves its terminal: who started it sees
   the line and status 1.

Ring 2. Source: our own; Java's properties files. Not here: settings against each other
(`config_validation.py`); what only the start itself can find (`kafka_server.py`).
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.settings import (
    ConfigError,
    PropertiesError,
    parse_properties,
    property_lines,
)

if TYPE_CHECKING:
    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.interfaces import IFileSystem
    from twisted_broker.net.listeners import ConfiguredListener, ListenerPlan
    from twisted_broker.systemd import InheritedSockets

_META_PROPERTIES, _LOCK = "meta.properties", ".lock"
_OF_SEVERAL = re.compile(r"broker-([1-9][0-9]*)\Z")
_OF_A_QUORUM = (
    "process.roles",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
)
_DIRECTORIES = ("log.dirs", "log.dir")
# Of the coordinators' topics, with the most that several brokers have of each by default.
_REPLICAS = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
}
_OF_A_NODE, _OF_A_DIRECTORY = 28, 12
"""Descriptors that a node holds with nobody connected, and more for each of its log directories."""
_SHARE = 4
"""They are at most this part of its descriptors: the rest is for its logs, the controller's and the
clients' connections (`net/connection_limits.py`).
"""


class StartError(Exception):
    """The start is refused; `str()` is one line."""


def read_values(path: str | None, settings: Mapping[str, str], brokers: int = 1) -> dict[str, str]:
    """What a node is started with: a properties file, or without one Kafka's sample, under the
    values of `--set`. `brokers`: in this process. Raises StartError, ConfigError.
    """
    from twisted_broker.config import SAMPLE_VALUES

    if path is None:
        values = dict(SAMPLE_VALUES)
        if settings.get(ZOOKEEPER_CONNECT):
            values = {}  # the sample is of a KRaft node
        elif "controller" not in settings.get("process.roles", "broker,controller"):
            # One of several machines: Kafka's default, which is for a cluster.
            for name in _REPLICAS:
                del values[name]
        elif brokers > 1:
            values |= {name: str(min(most, brokers)) for name, most in _REPLICAS.items()}
    else:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise StartError(f"--config {path} cannot be read: {reason}") from error
        try:
            check_file(path, text)
            values = parse_properties(text)
        except PropertiesError as error:
            raise StartError(f"--config {path}: {error}") from None
    values |= settings
    return as_zookeeper_member(values) if values.get(ZOOKEEPER_CONNECT) else values


def open_directories(config: BrokerConfig) -> list[str]:
    """A line for each of a broker's directories that other users of the machine may enter."""
    found = []
    for path in dict.fromkeys((*config.log_directories, config.metadata_directory)):
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:  # it will be made, or it is in memory
            continue
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            found.append(
                f"other users of this machine may read {path} (its mode is {mode:04o}): it holds "
                f"records, and the keys of SCRAM users; chmod -R go= {path}"
            )
    return found


def check_file(path: str, text: str) -> None:
    """Raises StartError for a properties file with a line without `=`, or a name twice."""
    seen: dict[str, int] = {}
    for number, name, separated in property_lines(text):
        if not separated:
            raise StartError(f"{path}, line {number}: {name} has no =: write {name}=VALUE")
        if name in seen:
            raise StartError(
                f"{path}, line {number}: {name} is there twice, first on line {seen[name]}: "
                "remove one of them"
            )
        seen[name] = number


def check_options(
    settings: Mapping[str, str], data: str | None, changed: Iterable[tuple[str, str]]
) -> None:
    """`settings`: those of `--set`; `changed`: (option, value) that would change one of their
    listeners. Raises StartError.
    """
    for option, value in changed:
        raise StartError(
            f"{option} {value} contradicts --set listeners={settings['listeners']}: give one of "
            "the two"
        )
    for name in _DIRECTORIES:
        if data is not None and name in settings:
            raise StartError(
                f"--data {data} contradicts --set {name}={settings[name]}: give one of the two"
            )


def as_zookeeper_member(values: dict[str, str]) -> dict[str, str]:
    """The settings of a member of a ZooKeeper cluster: a broker, and nothing else of a quorum.

    Raises ConfigError where they are a KRaft node's as well, or do not say which broker it is.
    """
    for name in _OF_A_QUORUM:
        if values.get(name):
            raise ConfigError(
                ZOOKEEPER_CONNECT,
                values[ZOOKEEPER_CONNECT],
                "",
                f"{name}={values[name]} makes this a node of a KRaft cluster: remove one of the "
                "two (there is no ZooKeeper since Kafka 4)",
            )
    if "broker.id" not in values and "node.id" not in values:
        raise ConfigError("broker.id", "", "the number of this broker in the ZooKeeper cluster")
    return {**values, "process.roles": "broker"}


def check_run_file(path: str) -> None:
    """Raises StartError where it could not be written."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise StartError(f"--run-file {path} is a directory: give the name of a file")
    if not os.path.isdir(directory):
        raise StartError(f"--run-file {path}: there is no directory {directory}: make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(f"--run-file {path}: this user may not write into {directory}")


def _check_directories(directories: Iterable[str], brokers: int) -> None:
    """`directories`: as given for all of the `brokers`. Raises StartError where another number of
    brokers was started in one of them.
    """
    for path in directories:
        alone = os.path.exists(os.path.join(path, _META_PROPERTIES))
        if brokers > 1 and alone:
            raise StartError(
                f"{path} is the directory of one broker, whose topics {brokers} new ones would "
                "not have: start it without --brokers, or give another directory with --data"
            )
        if brokers == 1 and not alone:
            several = _of_several(path)
            if several:
                raise StartError(
                    f"{path} has the directories of {len(several)} brokers of one process, whose "
                    f"topics a new one would not have: start it with --brokers {max(several)}, or "
                    "give another directory with --data"
                )


def _of_several(path: str) -> list[int]:
    """The brokers of one process that were started in this directory."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    found = [match for name in names if (match := _OF_SEVERAL.match(name))]
    return [
        int(match[1])
        for match in found
        if os.path.exists(os.path.join(path, match[0], _META_PROPERTIES))
    ]


def check_machine(
    configs: Sequence[BrokerConfig],
    directories: Sequence[str],
    inherited: InheritedSockets | None = None,
) -> None:
    """Refuses too few descriptors, ports that are taken, directories that another process uses,
    `directories` (as given for all brokers) in which another number of brokers was started, and
    `inherited` sockets that no listener has. Raises SystemExit.
    """
    from twisted.internet.error import CannotListenError

    from twisted_broker.log.filesystem import OsFileSystem
    from twisted_broker.net.listeners import CannotBind, plan_listeners

    files = OsFileSystem()
    try:
        _check_descriptors(configs)
        if inherited is not None:
            inherited.check(_addresses(configs))
        _check_directories(directories, len(configs))
        for config in configs:
            plan = plan_listeners(config)
            for endpoint in (*plan.controller, *plan.broker):
                if inherited is not None and inherited.has(endpoint.host, endpoint.port):
                    continue
                try:
                    try_port(endpoint)
                except OSError as error:
                    refused = CannotListenError(endpoint.host, endpoint.port, error)
                    raise CannotBind(endpoint, refused, endpoint in plan.controller) from None
            for path in (*config.log_directories, config.metadata_directory):
                _try_lock(files, path)
    except (CannotBind, StartError) as error:
        raise SystemExit(f"replog: {error}") from None


def _check_descriptors(configs: Sequence[BrokerConfig]) -> None:
    """Raises StartError where the process may not open as many files as its nodes need to serve
    anybody.
    """
    import resource  # not on Windows, of which a line tells

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = sum(
        _SHARE * (_OF_A_NODE + _OF_A_DIRECTORY * len(config.log_directories)) for config in configs
    )
    if most != resource.RLIM_INFINITY and most < least:
        raise StartError(
            f"this process may open {most} files, {len(configs)} "
            f"{'node needs' if len(configs) == 1 else 'nodes need'} at least {least}: raise "
            "ulimit -n (LimitNOFILE)"
        )


def _addresses(configs: Iterable[BrokerConfig]) -> Iterator[tuple[str, int]]:
    """Of all that these nodes listen on."""
    from twisted_broker.net.listeners import plan_listeners
    from twisted_broker.status.http_server import HOST

    for config in configs:
        plan = plan_listeners(config)
        yield from ((each.host, each.port) for each in (*plan.controller, *plan.broker))
        yield HOST, config.integer("replog.status.port")


def try_port(endpoint: ConfiguredListener) -> None:
    """Raises OSError where it cannot be bound."""
    if not endpoint.port:
        return
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind((endpoint.host, endpoint.port))


def _try_lock(files: IFileSystem, path: str) -> None:
    lock = os.path.join(path, _LOCK)
    # Where there is none, no process runs; made here, it would be the trace of a start.
    if not os.path.exists(lock):
        return
    try:
        files.lock(lock)()
    except BlockingIOError:
        raise StartError(
            f"{path} is in use by another process; stop it, or change log.dirs"
        ) from None
    except OSError:
        return  # the start itself names it: an offline directory, if there are others


def check_first_user(config: BrokerConfig, plan: ListenerPlan, files: IFileSystem) -> None:
    """Raises ConfigError for a new cluster without a user whose nodes log in by SCRAM."""
    from twisted_broker.security.security_protocol import (
        SASL_TO_BROKERS,
        SASL_TO_CONTROLLERS,
        SecurityProtocol,
    )

    if "controller" not in config.names("process.roles"):
        return
    path = config.metadata_directory
    for listener, setting in (
        (plan.to_controllers, SASL_TO_CONTROLLERS),
        (plan.inter_broker, SASL_TO_BROKERS),
    ):
        protocol = plan.protocols.get(listener, SecurityProtocol.PLAINTEXT)
        mechanism = config.listener_config(listener).text(setting) or "" if listener else ""
        if protocol.uses_sasl and mechanism.startswith("SCRAM-"):
            if not _has_users(files, path):
                raise ConfigError(
                    setting,
                    mechanism,
                    "",
                    f"the new cluster in {path} has no user, so no node could log in: give it "
                    f"the first one by replog format --add-scram '{mechanism}=[name=USER,"
                    "password=PASSWORD]', the user of sasl.jaas.config",
                )
            return


def _has_users(files: IFileSystem, path: str) -> bool:
    """Whether the cluster of this metadata directory may have any."""
    from twisted_broker.cluster.bootstrap import read_bootstrap
    from twisted_broker.cluster.metadata_check import holds_records
    from twisted_broker.log.errors import CheckpointError
    from twisted_broker.topic_names import METADATA_DIRECTORY

    try:
        if holds_records(files, f"{path}/{METADATA_DIRECTORY}"):
            return True
        return bool(read_bootstrap(files, path).users)
    except (OSError, CheckpointError):
        return True  # the start reads the same, and says what is wrong
