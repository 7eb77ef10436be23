"""Cases on the controller's listener: what its other nodes ask (BrokerRegistration and its kin, the
metadata log), and what an administrator's client may ask there, too, which are the cases of
`admin_cases.py`.
"""

from __future__ import annotations

from typing import Any

from tests.compare.acl_cases import create_acls, delete_acls, describe_acls
from tests.compare.admin_cases import (
    BROKER,
    NO_ID,
    UNKNOWN_ID,
    alter_client_quotas,
    alter_partition_reassignments,
    alterations,
    altered,
    api_versions,
    cleared,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
    unregister_broker,
    update_features,
)
from tests.compare.quorum_cases import (
    METADATA,
    add_raft_voter,
    begin_quorum_epoch,
    end_quorum_epoch,
    leader_epoch,
    remove_raft_voter,
    update_raft_voter,
    vote,
)
from tests.compare.sasl_cases import alter_user_scram_on_controller as alter_user_scram_credentials
from tests.compare.sasl_cases import sasl_authenticate, sasl_handshake
from tests.compare.side import Side

__all__ = (
    "add_raft_voter",
    "allocate_producer_ids",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition",
    "alter_partition_reassignments",
    "alter_user_scram_credentials",
    "api_versions",
    "assign_replicas_to_dirs",
    "begin_quorum_epoch",
    "broker_heartbeat",
    "broker_registration",
    "controller_registration",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_topics",
    "describe_acls",
    "describe_cluster",
    "describe_quorum",
    "elect_leaders",
    "end_quorum_epoch",
    "envelope",
    "fetch",
    "fetch_snapshot",
    "incremental_alter_configs",
    "list_partition_reassignments",
    "remove_raft_voter",
    "sasl_authenticate",
    "sasl_handshake",
    "unregister_broker",
    "update_features",
    "update_raft_voter",
    "vote",
)

NEW_BROKER, FIRST_DIRECTORY = 77, 200


def alter_configs(side: Side, version: int) -> None:
    _altered(side)


def incremental_alter_configs(side: Side, version: int) -> None:
    _altered(side)


def _altered(side: Side) -> None:
    """Not the brokers' own: Kafka's controller stores anything for them, and its broker ends."""
    topic, other = side.topic(), side.topic("u")
    for label, kind, name, settings in alterations():
        if kind != BROKER and label not in ("no value", "named twice"):
            altered(side, label, kind, name.format(t=topic, u=other), settings)
    cleared(side)


def _registration(side: Side, **more: Any) -> dict[str, Any]:
    """Of a broker that the cluster would take."""
    features = side.latest(
        "ApiVersions", client_software_name="compare", client_software_version="1"
    ).finalized_features
    number = FIRST_DIRECTORY + side.version  # ids below 100 are reserved
    return {
        "broker_id": NEW_BROKER,
        "cluster_id": side.latest("DescribeCluster").cluster_id,
        "incarnation_id": bytes(15) + bytes([number]),
        "listeners": [
            {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
        ],
        "features": [
            {
                "name": each.name,
                "min_supported_version": each.max_version_level,
                "max_supported_version": each.max_version_level,
            }
            for each in features
        ],
        "log_dirs": [bytes(15) + bytes([number])],
    } | more


def _epoch(answer: Any) -> None:
    answer.broker_epoch = min(answer.broker_epoch, 1)


def _registered(side: Side) -> int:
    """A broker that never serves; its epoch."""
    answer = side.call("BrokerRegistration", 4, _registration(side))
    assert not answer.error_code, answer
    return int(answer.broker_epoch)


def broker_registration(side: Side, version: int) -> None:
    def asked(label: str, **more: Any) -> None:
        side.ask(label, _epoch, **_registration(side, **more))

    asked("another cluster", cluster_id="nobody")
    asked("no cluster", cluster_id="")
    asked("id of one that lives", broker_id=1)
    asked("no features", features=[])
    feature = {"name": "metadata.version", "min_supported_version": 1, "max_supported_version": 2}
    asked("old features", features=[feature])
    asked("no listener", listeners=[])
    if version >= 1:
        asked("from ZooKeeper", is_migrating_zk_broker=True)
    if version >= 2:
        asked("no directory", log_dirs=[])
        asked("a directory twice", log_dirs=[UNKNOWN_ID, UNKNOWN_ID])
        asked("a reserved directory", log_dirs=[NO_ID])
    else:
        return
    asked("a new broker")
    asked("again")
    beat = {"broker_id": NEW_BROKER, "broker_epoch": _registered(side), "want_fence": True}
    side.call("BrokerHeartbeat", 2, beat)  # from here on it has a session on both sides
    asked("another incarnation", incarnation_id=UNKNOWN_ID)
    side.latest("UnregisterBroker", broker_id=NEW_BROKER)


def controller_registration(side: Side, version: int) -> None:
    """One that knows all: it stays in the image of both sides."""
    ranges = (("metadata.version", 7, 30), ("kraft.version", 0, 1), ("group.version", 0, 1))
    levels = ("share.version", "streams.version", "eligible.leader.replicas.version")
    features = [
        {"name": name, "min_supported_version": low, "max_supported_version": high}
        for name, low, high in (
            *ranges,
            *((name, 0, 1) for name in levels),
            ("transaction.version", 0, 2),
        )
    ]
    where = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
    fields = {"controller_id": 78, "incarnation_id": UNKNOWN_ID, "features": features}
    side.ask("a standby", listeners=[where], **fields)
    side.ask("again", listeners=[where], **fields)


def broker_heartbeat(side: Side, version: int) -> None:
    def asked(label: str, broker_id: int, epoch: int, **more: Any) -> None:
        fields = {"broker_id": broker_id, "broker_epoch": epoch, "want_fence": True}
        side.ask(label, **(fields | more))

    asked("unknown broker", 5, 1)
    asked("broker -1", -1, -1)
    asked("no epoch", 1, -1)
    asked("old epoch", 1, 0)
    epoch = _registered(side)
    asked("epoch ahead", NEW_BROKER, epoch + 9)
    asked("fenced", NEW_BROKER, epoch)
    asked("behind", NEW_BROKER, epoch, want_fence=False, current_metadata_offset=-1)
    asked("shuts down", NEW_BROKER, epoch, want_shut_down=True)
    side.latest("UnregisterBroker", broker_id=NEW_BROKER)
    asked("unregistered", NEW_BROKER, epoch)


def allocate_producer_ids(side: Side, version: int) -> None:
    for label, broker_id, epoch in (
        ("unknown broker", 5, 1),
        ("old epoch", 1, 0),
        ("no epoch", 1, -1),
    ):
        side.ask(label, broker_id=broker_id, broker_epoch=epoch)
    epoch = _registered(side)

    def tidy(answer: Any) -> None:
        answer.producer_id_start = min(answer.producer_id_start, 1)

    side.ask("a block", tidy, broker_id=NEW_BROKER, broker_epoch=epoch)
    side.latest("UnregisterBroker", broker_id=NEW_BROKER)


def alter_partition(side: Side, version: int) -> None:
    topic = side.topic()
    epoch = _registered(side)

    def asked(label: str, broker_id: int, broker_epoch: int, **more: Any) -> None:
        part = {
            "partition_index": more.pop("partition", 0),
            "leader_epoch": 0,
            "new_isr": [1],
            "new_isr_with_epochs": [{"broker_id": 1}],
            "partition_epoch": 0,
        } | more
        topic_id = part.pop("topic_id", side.id_of(topic))
        topics = [{"topic_id": topic_id, "partitions": [part]}]
        side.ask(label, broker_id=broker_id, broker_epoch=broker_epoch, topics=topics)

    asked("unknown broker", 5, 1)
    asked("old epoch", 1, 0)
    asked("no leader", NEW_BROKER, epoch)
    asked("no such partition", NEW_BROKER, epoch, partition=9)
    asked("no such topic", NEW_BROKER, epoch, topic_id=UNKNOWN_ID)
    asked("leader epoch behind", NEW_BROKER, epoch, leader_epoch=-1)
    asked("leader epoch ahead", NEW_BROKER, epoch, leader_epoch=9)
    side.ask("nothing", broker_id=NEW_BROKER, broker_epoch=epoch, topics=[])
    side.latest("UnregisterBroker", broker_id=NEW_BROKER)


def assign_replicas_to_dirs(side: Side, version: int) -> None:
    topic = side.topic()
    epoch = _registered(side)

    def asked(label: str, broker_id: int, broker_epoch: int, directory: bytes, **more: Any) -> None:
        part = {"partition_index": more.get("partition", 0)}
        topics = [{"topic_id": more.get("topic_id", side.id_of(topic)), "partitions": [part]}]
        side.ask(
            label,
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            directories=[{"id": directory, "topics": topics}],
        )

    asked("unknown broker", 5, 1, UNKNOWN_ID)
    asked("old epoch", 1, 0, UNKNOWN_ID)
    asked("not a replica", NEW_BROKER, epoch, UNKNOWN_ID)
    asked("lost directory", NEW_BROKER, epoch, bytes(15) + b"\1")
    asked("no directory", NEW_BROKER, epoch, NO_ID)
    asked("no such partition", NEW_BROKER, epoch, UNKNOWN_ID, partition=9)
    asked("no such topic", NEW_BROKER, epoch, UNKNOWN_ID, topic_id=UNKNOWN_ID)
    side.ask("nothing", broker_id=NEW_BROKER, broker_epoch=epoch, directories=[])
    side.latest("UnregisterBroker", broker_id=NEW_BROKER)


def envelope(side: Side, version: int) -> None:
    """What is inside must be a request of a forwarded kind with a principal."""
    for label, data, principal in (
        ("empty", b"", b""),
        ("no principal", b"", None),
        ("garbage", b"\x55" * 40, b"\x55" * 9),
    ):
        side.ask(
            label, request_data=data, request_principal=principal, client_host_address=b"\x7f\0\0\1"
        )


def fetch(side: Side, version: int) -> None:
    def tidy(answer: Any) -> None:
        """The two logs are not the same: their ends and bytes are not compared."""
        for topic in answer.responses:
            for part in topic.partitions:
                part.high_watermark = min(part.high_watermark, 1)
                part.log_start_offset = min(part.log_start_offset, 1)
                part.records = bool(part.records and len(part.records))
                part.current_leader.leader_epoch = min(part.current_leader.leader_epoch, 1)
                part.diverging_epoch.end_offset = min(part.diverging_epoch.end_offset, 1)
                part.diverging_epoch.epoch = min(part.diverging_epoch.epoch, 1)
        for node in answer.node_endpoints:
            node.port = 1

    epoch = leader_epoch(side)

    def asked(label: str, **more: Any) -> None:
        part = {
            "partition": more.pop("partition", 0),
            "current_leader_epoch": more.pop("epoch", epoch),
            "fetch_offset": more.pop("offset", 0),
            "last_fetched_epoch": more.pop("last_epoch", 0),
            "partition_max_bytes": 1 << 20,
        }
        topic_id = more.pop("topic_id", bytes(15) + b"\1")
        topics = [{"topic": more.pop("name", METADATA), "topic_id": topic_id, "partitions": [part]}]
        replica = more.pop("replica", 77)
        fields = {
            "replica_id": replica,
            "replica_state": {"replica_id": replica},
            "max_wait_ms": 0,
            "max_bytes": 1 << 20,
            "topics": topics * more.pop("times", 1),
        }
        side.ask(label, tidy, **(fields | more))

    asked("from the start")
    asked("a consumer", replica=-1)
    asked("another cluster", cluster_id="nobody")
    asked("no topics", times=0)
    asked("two topics", times=2)
    asked("another topic", name="t", topic_id=UNKNOWN_ID)
    asked("partition 1", partition=1)
    asked("epoch behind", epoch=epoch - 1)
    asked("epoch ahead", epoch=epoch + 5)
    asked("epoch -1", epoch=-1)
    asked("offset ahead", offset=1 << 40, last_epoch=epoch)
    asked("offset -1", offset=-1)
    asked("last epoch ahead", offset=1, last_epoch=epoch + 7)
    asked("last epoch -1", offset=1, last_epoch=-1)


def fetch_snapshot(side: Side, version: int) -> None:
    epoch = leader_epoch(side)

    def tidy(answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                part.current_leader.leader_epoch = min(part.current_leader.leader_epoch, 1)
        for node in answer.node_endpoints:
            node.port = 1

    def asked(label: str, **more: Any) -> None:
        part = {
            "partition": more.pop("partition", 0),
            "current_leader_epoch": more.pop("epoch", epoch),
            "snapshot_id": {"end_offset": 1 << 40, "epoch": 3},
            "position": more.pop("position", 0),
        }
        topics = [{"name": more.pop("name", METADATA), "partitions": [part]}]
        fields = {"replica_id": 77, "topics": topics * more.pop("times", 1)}
        side.ask(label, tidy, **(fields | more))

    asked("no such snapshot")
    asked("position -1", position=-1)
    asked("another cluster", cluster_id="nobody")
    asked("another topic", name="t")
    asked("partition 1", partition=1)
    asked("epoch behind", epoch=epoch - 1)
    asked("epoch ahead", epoch=epoch + 5)
    # Not one without topics: it ends Kafka's process.
