"""`replog metadata`: repairs of a controller's metadata.

Owns the options of `recover` and its output.

1. A source that cannot be used is one line on standard error; the others are used.
2. The exit status is 0 when the metadata was written, 1 when no source can be used, 2 for wrong
   arguments. With 1 and 2 nothing was changed.

Not here: the recovery itself (`cluster/metadata_recovery.py`).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twisted_broker.cli.number_types import WholeNumber

if TYPE_CHECKING:
    from twisted_broker.raft.voter_set import VoterNode

_REACH_SECONDS = 2


@click.group()
def metadata() -> None:
    """A controller's metadata (`__cluster_metadata-0`): rebuild what is lost or damaged."""


@metadata.command()
@click.option(
    "--from",
    "sources",
    metavar="SOURCE",
    multiple=True,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A broker's log directory (or its __cluster_metadata-0), or a snapshot (*.checkpoint). "
    "Give those of all brokers: the newest is taken.",
)
@click.option(
    "--to",
    "target",
    metavar="LOG_DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The controller's log directory (metadata.log.dir, else the first of log.dirs). "
    "Nothing may run on it.",
)
@click.option(
    "--node-id",
    type=WholeNumber(min=0),
    help="The controller's node.id; else as LOG_DIR or the metadata says.",
)
@click.option("--cluster-id", help="The cluster's id; needed when the only source is a snapshot.")
@click.option(
    "--move-aside",
    is_flag=True,
    help="Keep metadata that is in LOG_DIR under another name (*-stray) instead of refusing.",
)
@click.option(
    "--up-to-damage",
    is_flag=True,
    help="Use a damaged source up to its first damaged batch; what is behind it is lost.",
)
def recover(
    sources: tuple[Path, ...],
    target: Path,
    node_id: int | None,
    cluster_id: str | None,
    move_aside: bool,
    up_to_damage: bool,
) -> None:
    """Rebuild a controller's metadata from the logs that its brokers keep.

    Every broker without a controller of its own keeps the metadata log in its log directory.
    Stop the controller; brokers may run on.
    Then, for a controller whose directory was /var/lib/replog:

    \b
      replog metadata recover --from /mnt/broker1 --from /mnt/broker2 \\
          --to /var/lib/replog --move-aside

    Takes the undamaged source of the newest epoch, with the highest offset. The new controller
    continues there, in a higher epoch. Changes after that offset are lost, and a broker that had
    applied more of them refuses to follow: then take that broker's log.

    Of several controllers it is for a majority that is lost for good: the one that is written votes
    alone, the others are voters no more.
    """
    from twisted_broker.cluster.metadata_recovery import (
        CannotRecover,
        Target,
        most_advanced,
        others_of,
        read_source,
        recover,
    )
    from twisted_broker.log.errors import CheckpointError
    from twisted_broker.log.filesystem import OsFileSystem
    from twisted_broker.log.log_directory import LogDirMismatch

    files = OsFileSystem()
    usable = []
    for path in sources:
        try:
            usable.append(read_source(files, str(path.resolve()), up_to_damage))
        except (CannotRecover, CheckpointError, OSError) as error:
            click.echo(f"not used: {error}", err=True)
    if not usable:
        sys.exit(1)
    for each in usable:
        click.echo(f"{each.path}: {_reach(each.end_offset, each.image.epoch)}")
        if each.damage:
            click.echo(f"not whole: {each.damage}", err=True)
    try:
        source = most_advanced(usable)
        wanted = Target(str(target.resolve()), node_id, cluster_id, move_aside)
        _check_others(others_of(source, node_id))
        done = recover(files, source, wanted, int(time.time() * 1000), os.urandom)
    except (CannotRecover, CheckpointError, LogDirMismatch, OSError) as error:
        raise click.UsageError(str(error)) from error
    for name in done.aside:
        click.echo(f"kept as {name}")
    image = source.image
    partitions = sum(len(topic.partitions) for topic in image.topics_by_id.values())
    click.echo(f"used {source.path}: {_reach(source.end_offset, image.epoch)}")
    click.echo(
        f"it holds {len(image.topics_by_id)} topics with {partitions} "
        f"partitions, and {len(image.brokers)} brokers"
    )
    click.echo(
        f"wrote {done.directory}: node {done.node_id} of cluster "
        f"{done.cluster_id}; its next epoch is {done.epoch + 1}"
    )
    for voter in done.dropped:
        click.echo(
            f"controller {voter.id} votes no more: never start it on its old directory; format it "
            "anew with --no-initial-controllers, and it may join"
        )
    click.echo(
        f"changes from offset {source.end_offset} on are lost, if there were any: new topics, "
        "settings, leaders; a broker that has applied one of them stops and logs it"
    )


def _check_others(voters: tuple[VoterNode, ...]) -> None:
    """Raises UsageError where another voter is there: two quorums of one cluster would follow."""
    for voter in voters:
        for endpoint in voter.endpoints:
            try:
                socket.create_connection((endpoint.host, endpoint.port), _REACH_SECONDS).close()
            except OSError:
                continue
            raise click.UsageError(
                f"controller {voter.id} answers at {endpoint.host}:{endpoint.port}, and votes: "
                "where a majority lives nothing need be recovered; where it does not, stop that "
                "one first"
            )


def _reach(end_offset: int, epoch: int) -> str:
    return f"metadata up to offset {end_offset} of epoch {epoch}"
