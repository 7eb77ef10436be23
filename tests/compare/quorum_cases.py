"""Cases of the quorum's own requests on the controller's listener: what a controller refuses, and
what it says of who leads. Nothing that a voter of the quorum would send: it would end its leader's
epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compare.side import Side

__all__ = (
    "add_raft_voter",
    "begin_quorum_epoch",
    "end_quorum_epoch",
    "remove_raft_voter",
    "update_raft_voter",
    "vote",
)

METADATA, STRANGER = "__cluster_metadata", 77


def leader_epoch(side: Side) -> int:
    """Of the metadata's partition."""
    topics = [{"topic_name": METADATA, "partitions": [{"partition_index": 0}]}]
    epoch: int = side.latest("DescribeQuorum", topics=topics).topics[0].partitions[0].leader_epoch
    return epoch


def _tidy(answer: Any) -> None:
    for topic in answer.topics:
        for part in topic.partitions:
            part.leader_epoch = min(part.leader_epoch, 1)
    for node in answer.node_endpoints:
        node.port = 1


def _asker(side: Side, **of_partition: Any) -> Callable[..., None]:
    """`of_partition`: what each of them names."""

    def asked(label: str, **more: Any) -> None:
        part = {"partition_index": more.pop("partition", 0)} | of_partition
        topics = [{"topic_name": more.pop("name", METADATA), "partitions": [part]}]
        side.ask(label, _tidy, **({"topics": topics} | more))

    return asked


def _refused(side: Side, **of_partition: Any) -> None:
    asked = _asker(side, **of_partition)
    asked("an epoch that is over")
    asked("another cluster", cluster_id="nobody")
    asked("another topic", name="t")
    asked("partition 1", partition=1)


def vote(side: Side, version: int) -> None:
    epoch = leader_epoch(side) - 1
    _refused(side, replica_epoch=epoch, replica_id=STRANGER, last_offset_epoch=0, last_offset=0)


def begin_quorum_epoch(side: Side, version: int) -> None:
    _refused(side, leader_id=STRANGER, leader_epoch=leader_epoch(side) - 1)


def end_quorum_epoch(side: Side, version: int) -> None:
    _refused(side, leader_id=STRANGER, leader_epoch=leader_epoch(side) - 1)


def add_raft_voter(side: Side, version: int) -> None:
    fields = {
        "cluster_id": "nobody",
        "timeout_ms": 1000,
        "voter_id": STRANGER,
        "voter_directory_id": bytes(15) + b"\1",
        "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}],
    }
    side.ask("another cluster", **fields)


def remove_raft_voter(side: Side, version: int) -> None:
    directory = bytes(15) + b"\1"
    side.ask(
        "another cluster",
        cluster_id="nobody",
        voter_id=STRANGER,
        voter_directory_id=directory,
    )


def update_raft_voter(side: Side, version: int) -> None:
    epoch = leader_epoch(side)

    def tidy(answer: Any) -> None:
        answer.current_leader.leader_epoch = min(answer.current_leader.leader_epoch, 1)
        answer.current_leader.port = min(answer.current_leader.port, 1)

    def asked(label: str, **more: Any) -> None:
        fields = {
            "cluster_id": None,
            "current_leader_epoch": epoch,
            "voter_id": STRANGER,
            "voter_directory_id": bytes(15) + b"\1",
            "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}],
            "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        }
        side.ask(label, tidy, **(fields | more))

    asked("no voter")
    asked("another cluster", cluster_id="nobody")
    asked("an epoch that is over", current_leader_epoch=epoch - 1)
    asked("an epoch ahead", current_leader_epoch=epoch + 5)
    asked("no listener", listeners=[])
