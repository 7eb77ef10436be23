"""`bootstrap.checkpoint`: what the metadata of a new cluster begins with.

Owns the records of a new cluster, and the file in which a storage tool (`replog format`,
`kafka-storage format`) leaves what its operator chose: feature levels, the first users of SCRAM.

1. The file counts once: when the metadata log finalises no feature yet.
2. A level outside our range stops the start; a feature that is not served stays at level 0, and a
   line says so.
3. The file is written under its name only when it is whole and durable.

Source: Kafka's `BootstrapMetadata`, `BootstrapDirectory`, `Formatter`; KIP-631, KIP-778;
FILE_FORMATS 1. Not here: ACLs in that file (refused: no tool writes them).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from twisted_broker.cluster.features import INITIAL_LEVELS, KRAFT_VERSION, SUPPORTED_FEATURES
from twisted_broker.cluster.partition_change import ELR_FEATURE
from twisted_broker.cluster.records import DIRECTORIES_LEVEL, ELR_LEVEL, LATEST_METADATA_VERSION
from twisted_broker.cluster.snapshots import read_records, snapshot_frame
from twisted_broker.image.entries import FeatureRange
from twisted_broker.image.metadata_image import METADATA_VERSION
from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.log.errors import CheckpointError
from twisted_broker.wire.corrupt_record import CorruptRecordError
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import Record

NAME = "bootstrap.checkpoint"
FIRST_LEVELS: Mapping[str, FeatureRange] = {
    **{name: each for name, each in SUPPORTED_FEATURES.items() if name != KRAFT_VERSION},
    # Below, a broker had one directory, which our controller's records cannot say.
    METADATA_VERSION: FeatureRange(DIRECTORIES_LEVEL, LATEST_METADATA_VERSION),
}
"""What a new cluster can begin with."""


class Bootstrap(NamedTuple):
    """`levels`: what a new cluster finalises, by feature; `unserved`: what the file wanted besides
    and this program does not serve; `users`: those that it begins with.
    """

    levels: Mapping[str, int]
    unserved: Mapping[str, int]
    users: Sequence[records.UserScramCredentialRecord] = ()


DEFAULT = Bootstrap(INITIAL_LEVELS, {})
"""Of a directory that no tool formatted."""


def bootstrap_records(levels: Mapping[str, int]) -> list[Record]:
    """A record for each level above 0, metadata.version first, as Kafka orders them."""
    names = sorted(levels, key=lambda name: (name != METADATA_VERSION, name))
    return [
        records.FeatureLevelRecord(name=name, feature_level=levels[name])
        for name in names
        if levels[name]
    ]


def check_levels(levels: Mapping[str, int]) -> None:
    """ValueError, which names what is possible, when a new cluster cannot have these."""
    for name, level in levels.items():
        served = FIRST_LEVELS.get(name)
        if served is None:
            raise ValueError(f"{name} is not served; there are {', '.join(sorted(FIRST_LEVELS))}")
        if not served.contains(level):
            raise ValueError(
                f"{name} can be {served.min_version} to {served.max_version}, not {level}"
            )
    if METADATA_VERSION not in levels:
        raise ValueError(f"{METADATA_VERSION} is missing")
    if levels.get(ELR_FEATURE) and levels[METADATA_VERSION] < ELR_LEVEL:
        raise ValueError(f"{ELR_FEATURE} needs {METADATA_VERSION} {ELR_LEVEL} or above")


def write_bootstrap(
    files: IFileSystem,
    log_directory: str,
    levels: Mapping[str, int],
    wall_ms: int,
    users: Sequence[records.UserScramCredentialRecord] = (),
) -> None:
    """Writes the file durably. Raises OSError."""
    found = [*bootstrap_records(levels), *users]
    content = b"".join(snapshot_frame(found, 0, wall_ms, wall_ms, levels[METADATA_VERSION]))
    write_aside(files, posixpath.join(log_directory, NAME), content)


def read_bootstrap(files: IFileSystem, log_directory: str) -> Bootstrap:
    """What a storage tool left in the metadata's log directory; `DEFAULT` where there is nothing.

    CheckpointError when the file is damaged or wants what is not possible here, OSError.
    """
    path = posixpath.join(log_directory, NAME)
    content = read_whole(files, path)
    if content is None:
        return DEFAULT
    try:
        found, _ = read_records(content, NAME)
    except (WireError, CorruptRecordError) as error:
        raise CheckpointError(
            path, f"is damaged: {error}; remove it to begin with the latest levels"
        ) from error
    levels: dict[str, int] = {}
    unserved: dict[str, int] = {}
    users: list[records.UserScramCredentialRecord] = []
    for record in found:
        if isinstance(record, records.UserScramCredentialRecord):
            users.append(record)
            continue
        if not isinstance(record, records.FeatureLevelRecord):
            raise CheckpointError(
                path,
                f"holds a {type(record).__name__}, which this program does not serve; format "
                "the directory without it",
            )
        if record.name not in FIRST_LEVELS:
            unserved[record.name] = record.feature_level
            continue
        levels[record.name] = record.feature_level
    try:
        check_levels(levels)
    except ValueError as error:
        raise CheckpointError(
            path, f"cannot be used: {error}; format the directory with levels that can"
        ) from error
    return Bootstrap(levels, unserved, tuple(users))
