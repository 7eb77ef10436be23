"""Cleanup policies out of a metadata log."""

from __future__ import annotations

from replog_pipeline.jobs.audit import cleanup
from replog_pipeline.jobs.audit.metadata_policies import cleanup_policies
from replog_pipeline.segments.log_folder import folders
from tests.pipeline.replica_folders import partition
from twisted_broker.cluster.records import encode_record
from twisted_broker.wire.messages.metadata_records import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

BROKER, TOPIC = 4, 2


def config(topic, value, name="cleanup.policy", kind=TOPIC):
    return ConfigRecord(resource_type=kind, resource_name=topic, name=name, value=value)


def batch(base, *records):
    builder = BatchBuilder()
    for record in records:
        builder.append(0, None, encode_record(record, 0))
    made = bytearray(builder.build())
    set_offsets_and_epoch(made, base, 0)
    return bytes(made)


def written(place, segments, snapshot=None):
    folder = partition(place, "__cluster_metadata-0", segments)
    if snapshot is not None:
        (folder / f"{50:020d}-{1:010d}.checkpoint").write_bytes(snapshot)
    return cleanup_policies(str(place))


def test_the_last_word_on_a_topic_counts(tmp_path):
    log = [
        batch(
            0,
            TopicRecord(name="a"),
            config("a", "delete"),
            config("a", "compact"),
            config("a", "7", name="segment.bytes"),
        ),
        batch(
            4,
            TopicRecord(name="b"),
            config("b", "compact"),
            config("b", None),
            config("c", "compact"),
            config("c", "compact", kind=BROKER),
        ),
        batch(9, RemoveTopicRecord(topic_id=bytes(16)), TopicRecord(name="c")),
    ]
    assert written(tmp_path, {0: log}) == {"a": "compact"}


def test_a_snapshot_comes_before_the_log(tmp_path):
    assert written(
        tmp_path,
        {50: [batch(50, config("a", "compact,delete"))]},
        batch(0, config("a", "delete"), config("b", "compact")),
    ) == {
        "a": "compact,delete",
        "b": "compact",
    }


def test_what_cannot_be_read_is_passed_over(tmp_path):
    broken = bytearray(batch(10, config("b", "compact")))
    broken[61:] = b"\xff" * (len(broken) - 61)
    assert written(
        tmp_path,
        {
            0: [batch(0, config("a", "compact")), bytes(broken)],
            20: [batch(20, config("c", "compact"))],
        },
    ) == {
        "a": "compact",
        "c": "compact",
    }


def test_no_metadata_log_knows_nothing(tmp_path):
    assert cleanup_policies(str(tmp_path)) == {}


def test_who_says_a_policy_and_in_which_order(tmp_path):
    partition(tmp_path, "orders-0", {0: []})
    partition(tmp_path, "__consumer_offsets-0", {0: []})
    internal, orders = folders(str(tmp_path), internal=True)

    def said(folder, options=(), recorded=None):
        policy = cleanup.of_folder(folder, cleanup.given(options), recorded or {})
        return str(policy), policy.source

    assert said(orders) == ("delete", "assumed")
    assert said(internal) == ("compact", "an internal topic")
    assert said(orders, recorded={"orders": "compact"}) == ("compact", "the metadata log")
    assert said(orders, ["orders=delete", "compact"], {"orders": "compact"}) == (
        "delete",
        "the option",
    )
