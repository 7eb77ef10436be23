"""`meta.properties`: whose a log directory is.

Owns the reading and writing of node id, cluster id and directory id.

1. A directory belongs to one node of one cluster for ever; its directory id never changes.
2. Version 1 is written; version 0 (`broker.id`) is read too.

Source: Kafka's `MetaProperties`; FILE_FORMATS 1. Not here: whether a directory is this node's
(`log_directory.py`).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from twisted_broker.interfaces import IFileSystem
from twisted_broker.java_numbers import INT_MAX, parse_whole
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.log.errors import CheckpointError
from twisted_broker.wire.primitives import uuid_from_text, uuid_text

NAME = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`directory_id` is 16 bytes; None only in old directories."""

    cluster_id: str | None
    node_id: int | None
    directory_id: bytes | None
    version: int = 1


def read_meta_properties(files: IFileSystem, directory: str) -> MetaProperties | None:
    """None when the directory was never formatted. Raises CheckpointError, OSError."""
    path = posixpath.join(directory, NAME)
    content = read_whole(files, path)
    if content is None:
        return None
    try:
        return _parse(content.decode("utf-8"))
    except (ValueError, KeyError) as error:
        raise CheckpointError(path, f"cannot be understood: {error}") from error


def _parse(text: str) -> MetaProperties:
    lines = (line.strip() for line in text.splitlines())
    fields = {}
    for line in lines:
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            fields[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    version = parse_whole(fields["version"])
    if version not in (0, 1):
        raise ValueError(f"version {version}")
    node = fields["node.id"] if version == 1 else fields.get("broker.id")
    cluster_id = fields.get("cluster.id", "" if version == 1 else None)
    if cluster_id == "":  # None would mean one that is yet to be adopted
        raise ValueError(
            "it has no cluster.id: write the cluster's there, another node's meta.properties has it"
        )
    directory_id = fields.get("directory.id")
    return MetaProperties(
        cluster_id,
        None if node is None else parse_whole(node, 0, INT_MAX),
        None if directory_id is None else uuid_from_text(directory_id),
        version,
    )


def write_meta_properties(files: IFileSystem, directory: str, properties: MetaProperties) -> None:
    """Writes version 1 durably. Raises OSError."""
    assert properties.cluster_id is not None and properties.node_id is not None
    lines = [
        "#",
        f"cluster.id={properties.cluster_id}",
        f"node.id={properties.node_id}",
        "version=1",
    ]
    if properties.directory_id is not None:
        lines.insert(2, f"directory.id={uuid_text(properties.directory_id)}")
    write_aside(files, posixpath.join(directory, NAME), ("\n".join(lines) + "\n").encode())
