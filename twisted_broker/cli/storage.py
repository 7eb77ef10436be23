"""`replog format`: log directories before the first start.

Owns the options of `format` and its output.

1. The exit status is 0 when everything asked for is formatted, 2 for wrong arguments and for
   directories that cannot be formatted; with 2 nothing was written, unless the disk failed.

Not here: what is written (`cluster/storage_formatter.py`).
"""

from __future__ import annotations

import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import click

from twisted_broker.java_numbers import is_digits

if TYPE_CHECKING:
    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.raft.voter_set import VoterNode
    from twisted_broker.wire.messages.metadata_records import UserScramCredentialRecord


@click.command("format")
@click.option(
    "--config",
    "-c",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The node's server.properties.",
)
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting; may be repeated."
)
@click.option(
    "--data",
    "-d",
    type=click.Path(file_okay=False, path_type=Path),
    help="The log directory, where no file names log.dirs (./replog-data).",
)
@click.option(
    "--cluster-id", "-t", help="The cluster: the same for all its nodes. Without it, a new one."
)
@click.option(
    "--release-version",
    "-r",
    help="Begin with what this release of Kafka finalises, as 4.0: for brokers of that release.",
)
@click.option(
    "--feature",
    "-f",
    "features",
    metavar="NAME=LEVEL",
    multiple=True,
    help="The level of one feature; may be repeated.",
)
@click.option(
    "--add-scram",
    "-S",
    "users",
    metavar="MECHANISM=[..]",
    multiple=True,
    help="A first user: 'SCRAM-SHA-256=[name=alice,password=SECRET]'; may be repeated.",
)
@click.option(
    "--standalone", "-s", is_flag=True, help="This controller is the quorum's first and only voter."
)
@click.option(
    "--initial-controllers",
    "-I",
    metavar="ID@HOST:PORT:DIRECTORY,..",
    help="The quorum's first voters, the same for all of them. DIRECTORY: the id of each one's "
    "metadata directory, 22 characters.",
)
@click.option(
    "--no-initial-controllers",
    "-N",
    is_flag=True,
    help="The quorum is there already: this node finds it at controller.quorum.bootstrap.servers.",
)
@click.option(
    "--ignore-formatted",
    "-g",
    is_flag=True,
    help="Leave directories that are formatted as they are, and format the others.",
)
def format_storage(
    config: Path | None,
    settings: tuple[str, ...],
    data: Path | None,
    cluster_id: str | None,
    release_version: str | None,
    features: tuple[str, ...],
    users: tuple[str, ...],
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    ignore_formatted: bool,
) -> None:
    """Format the log directories of a node, as Kafka's kafka-storage does.

    A broker formats empty directories at its first start by itself. Format them before when the
    cluster id or the feature levels are to be chosen, or when the start must refuse an empty
    directory (`twistd replog --require-formatted`), as after a disk that was not mounted.

    The levels and users are for a new cluster: its controller reads them at its first start.

    With --standalone or --initial-controllers the voters of the quorum are records of its log
    (kraft.version 1), and can be changed: kafka-metadata-quorum add-controller, remove-controller.
    """
    from twisted_broker.cluster.storage_formatter import Node, format_node
    from twisted_broker.log.errors import CheckpointError
    from twisted_broker.log.filesystem import OsFileSystem
    from twisted_broker.log.log_directory import LogDirMismatch
    from twisted_broker.security.sasl.scram import BY_CODE

    found = _configuration(config, settings, data)
    options = (standalone, bool(initial_controllers), no_initial_controllers)
    features = _without_kraft_version(found, features, options)
    voters = _voters(found, standalone, initial_controllers)
    levels = _levels(release_version, features)
    node = Node(
        found.node_id,
        cluster_id,
        list(dict.fromkeys((*found.log_directories, found.metadata_directory))),
        found.metadata_directory,
        levels,
        _users(users),
        voters,
    )
    try:
        done = format_node(
            OsFileSystem(), node, SystemRandom(), time.time_ns() // 1_000_000, ignore_formatted
        )
    except (CheckpointError, LogDirMismatch, OSError) as error:
        raise click.UsageError(str(error)) from error
    for path in done.old:
        click.echo(f"{path} is formatted already")
    if node.metadata_directory in done.old and (release_version or features):
        click.echo(
            f"--release-version and --feature are for a new cluster: that of "
            f"{node.metadata_directory} keeps its levels; change them with kafka-features",
            err=True,
        )
    for path in done.new:
        click.echo(f"formatted {path} for node {node.node_id} of cluster {done.cluster_id}")
    if node.metadata_directory in done.new and not no_initial_controllers:
        click.echo(
            "a new cluster begins with "
            + ", ".join(f"{name} {level}" for name, level in sorted(levels.items()) if level)
        )
        for user in node.users:
            click.echo(f"and with user {user.name} of {BY_CODE[user.mechanism].name}")
        for voter in voters:
            click.echo(f"and with voter {_voter_text(voter)}")


_DYNAMIC = ("--standalone", "--initial-controllers", "--no-initial-controllers")


def _without_kraft_version(
    config: BrokerConfig, features: tuple[str, ...], options: tuple[bool, bool, bool]
) -> tuple[str, ...]:
    """The other features: kraft.version is no level of the image. Raises UsageError for options
    that contradict each other, or the configuration.
    """
    given = [name for name, is_given in zip(_DYNAMIC, options, strict=True) if is_given]
    is_static = bool(config.names("controller.quorum.voters"))
    levels = [each.partition("=")[2] for each in features if each.startswith("kraft.version=")]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} contradict: give one")
    if given and is_static:
        raise click.UsageError(
            f"{given[0]} is for a quorum whose voters its log says: in the configuration, remove "
            f"controller.quorum.voters and set {_BOOTSTRAP}"
        )
    if given == ["--standalone"] and "controller" not in config.names("process.roles"):
        raise click.UsageError("--standalone is for a controller: process.roles has none")
    if given == ["--no-initial-controllers"] and not config.names(_BOOTSTRAP):
        raise click.UsageError(
            f"--no-initial-controllers needs {_BOOTSTRAP}, to find the quorum at"
        )
    for level in levels:
        if level not in ("0", "1") or (level == "1") != bool(given):
            raise click.UsageError(
                f"--feature kraft.version={level}: it is 1 with one of {', '.join(_DYNAMIC)}, "
                "else 0"
            )
    return tuple(each for each in features if not each.startswith("kraft.version="))


_BOOTSTRAP = "controller.quorum.bootstrap.servers"


def _voters(config: BrokerConfig, standalone: bool, initial: str | None) -> list[VoterNode]:
    from twisted_broker.cluster.raft_manager import advertised_listener, listener_name
    from twisted_broker.raft.replica_key import Endpoint, ReplicaKey
    from twisted_broker.raft.voter_set import VoterNode
    from twisted_broker.wire.primitives import new_uuid, uuid_from_text

    name, found = listener_name(config), dict[int, VoterNode]()
    if standalone:
        key = ReplicaKey(config.node_id, new_uuid(SystemRandom().randbytes))
        return [VoterNode(key, (advertised_listener(config),), 0, 1)]
    for each in (initial or "").split(",") if initial is not None else ():
        number, _, rest = each.strip().partition("@")
        address, _, text = rest.rpartition(":")
        host, _, port = address.rpartition(":")
        try:
            directory_id = uuid_from_text(text)
            if not (is_digits(number) and host and is_digits(port) and 0 < int(port) < 65536):
                raise ValueError(each)
        except ValueError:
            raise click.UsageError(
                "--initial-controllers takes ID@HOST:PORT:DIRECTORY,.., the id of each one's "
                f"directory in 22 characters (as of kafka-storage random-uuid), not {each!r}"
            ) from None
        if int(number) in found:
            raise click.UsageError(f"--initial-controllers names node {number} twice")
        endpoint = Endpoint(name, host.strip("[]"), int(port))
        key = ReplicaKey(int(number), directory_id)
        found[key.id] = VoterNode(key, (endpoint,), 0, 1)
    return list(found.values())


def _voter_text(voter: VoterNode) -> str:
    from twisted_broker.wire.primitives import uuid_text

    first = voter.endpoints[0]
    return f"{voter.id}@{first.host}:{first.port}:{uuid_text(voter.key.directory_id)}"


def _configuration(file: Path | None, given: tuple[str, ...], data: Path | None) -> BrokerConfig:
    """As `twistd replog` would have it with these, with the same refusals."""
    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.known_settings import ZOOKEEPER_CONNECT
    from twisted_broker.settings import ConfigError
    from twisted_broker.start_checks import StartError, check_options, read_values

    settings = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes NAME=VALUE, not {each!r}")
        settings[name.strip()] = value.strip()
    try:
        check_options(settings, None if data is None else str(data), ())
        values = read_values(None if file is None else str(file), settings)
        if data is not None or not ("log.dirs" in values or "log.dir" in values):
            values["log.dirs"] = str((data or Path("replog-data")).absolute())
        if ZOOKEEPER_CONNECT in values:
            raise click.UsageError(
                f"{ZOOKEEPER_CONNECT}: a member of a ZooKeeper cluster needs no formatted "
                "directory; start it as it is"
            )
        return BrokerConfig(values)
    except (ConfigError, StartError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _users(texts: tuple[str, ...]) -> list[UserScramCredentialRecord]:
    from twisted_broker.cluster.scram_changes import parse_user
    from twisted_broker.security.sasl.scram import NONCE_BYTES

    found: dict[tuple[str, int], UserScramCredentialRecord] = {}
    for text in texts:
        try:
            user = parse_user(text, SystemRandom().randbytes(NONCE_BYTES))
        except ValueError as error:
            raise click.UsageError(f"--add-scram {error}") from None
        if (user.name, user.mechanism) in found:
            raise click.UsageError(f"--add-scram names user {user.name} twice with one mechanism")
        found[user.name, user.mechanism] = user
    return list(found.values())


def _levels(release: str | None, features: tuple[str, ...]) -> dict[str, int]:
    from twisted_broker.cluster.bootstrap import check_levels
    from twisted_broker.cluster.storage_formatter import RELEASES, levels_of
    from twisted_broker.image.metadata_image import METADATA_VERSION

    given: dict[str, int] = {}
    for each in features:
        name, equals, level = each.partition("=")
        if not equals or not is_digits(level):
            raise click.UsageError(f"--feature takes NAME=LEVEL, not {each!r}")
        given[name] = int(level)
    if release is None:
        first = given.get(METADATA_VERSION, max(RELEASES.values()))
    elif METADATA_VERSION in given:
        raise click.UsageError(f"--release-version and {METADATA_VERSION} contradict: give one")
    elif release not in RELEASES:
        raise click.UsageError(f"--release-version takes {', '.join(RELEASES)}, not {release!r}")
    else:
        first = RELEASES[release]
    levels = {**levels_of(first), **given}
    try:
        check_levels(levels)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return levels
