"""Records of streams groups against a segment that Apache Kafka 4.3.1 wrote
(golden/streams-group.log): read, written again, and decided again by the same requests.
"""

from tests.coordinator.streams.streams_run import (
    StreamsRun,
    info,
    subtopology,
    tasks,
    topics,
    topology,
)
from tests.coordinator.test_group_records import GOLDEN, golden_records
from twisted_broker.coordinator.group_replay import GroupReplay
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.streams.configure import Status, StatusCode
from twisted_broker.coordinator.streams.group import StreamsGroup, StreamsGroupState
from twisted_broker.coordinator.streams.records import decode_record
from twisted_broker.wire.records import iterate_batches

APP = topology(
    subtopology("0", ["sin1"], sinks=["app-rep-repartition"]),
    subtopology(
        "1",
        repartition=[info("app-rep-repartition", replication_factor=1)],
        changelogs=[info("app-store-changelog", replication_factor=1, cleanup_policy="compact")],
    ),
    epoch=1,
)
STALE = topology(subtopology("0", ["sin1"]), epoch=0)


def read():
    return [decode_record(each.key, each.value) for each in golden_records("streams-group")]


def test_kafkas_records_come_back_as_the_same_bytes():
    """GN 4.50: every type, values and tombstones, to the byte."""
    records = read()
    assert {key.record_type for key, _ in records} == {17, 19, 20, 21, 22, 23}
    for ours, kafkas in zip(records, golden_records("streams-group"), strict=True):
        assert encode_record(ours) == (kafkas.key, kafkas.value)


def test_kafkas_log_is_a_group_at_each_batch_and_none_at_the_end():
    """GN 4.51, 2.103."""
    replay = GroupReplay(StreamsGroup)
    states = []
    for batch in iterate_batches((GOLDEN / "streams-group.log").read_bytes(), check_crc=True):
        for each in batch.records():
            replay.apply(decode_record(each.key, each.value))
        if "app1" in replay.groups:
            group = replay.groups["app1"]
            states.append((group.state.value, group.epoch, len(group.members)))
    assert states == [
        ("NotReady", 2, 1),
        ("NotReady", 3, 2),
        ("Reconciling", 4, 2),
        ("Assigning", 5, 3),
        ("Assigning", 6, 2),
        ("Assigning", 7, 1),
        ("Empty", 8, 0),
    ]
    assert not replay.groups


def test_the_same_requests_write_kafkas_records(monkeypatch):
    """GN 4.5 to 4.17, 4.32, 4.51: the delay of the first target, missing sources, missing internal
    topics, the first tasks, a member with a stale topology, leaving, deletion. The ids of Kafka's
    topics are not known, so its hashes are handed in.
    """
    run = StreamsRun(
        topics(), group_id="app1", initial_rebalance_delay_ms=3_000, assignment_interval_ms=1_000
    )
    hashes = iter([0, 4073850002100780248, 9214048371786643129])

    def of_group(image, names):
        yield from ()
        return next(hashes)

    monkeypatch.setattr(
        type(run.hashes), "of_group", lambda self, image, names: of_group(image, names)
    )
    delayed = Status(
        StatusCode.ASSIGNMENT_DELAYED,
        "Assignment delayed due to the configured initial rebalance delay.",
    )
    joined = run.join("w1", APP, process_id="p1")
    missing = Status(StatusCode.MISSING_SOURCE_TOPICS, "Source topics sin1 are missing.")
    assert (joined.member_epoch, joined.status) == (1, (delayed, missing))
    run.is_delayed = False
    run.change_topics(topics(sin1=2))
    run.wall_ms = 1795823659472
    joined = run.join("w2", APP, process_id="p2", endpoint=("h2", 9000))
    assert joined.member_epoch == 3
    assert [each.code for each in joined.status] == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert [(each.name, each.partitions) for each in joined.to_create] == [
        ("app-rep-repartition", 2),
        ("app-store-changelog", 2),
    ]
    run.change_topics(topics(sin1=2, app_rep_repartition=2, app_store_changelog=2))
    run.wall_ms = 1795823660903
    told = run.send("w2", 3)
    assert (told.member_epoch, told.tasks.active) == (4, tasks(s0=[1], s1=[1]))
    joined = run.join("w3", STALE, process_id="p3")
    assert (joined.member_epoch, any(joined.tasks)) == (4, False)
    assert [each.code for each in joined.status] == [
        StatusCode.STALE_TOPOLOGY,
        StatusCode.ASSIGNMENT_DELAYED,
    ]
    for member_id in ("w1", "w2", "w3"):
        run.send(member_id, -1)
    assert run.group.state is StreamsGroupState.EMPTY
    run.delete()
    kafkas = [
        [(each.key, each.value) for each in batch.records()]
        for batch in iterate_batches((GOLDEN / "streams-group.log").read_bytes(), check_crc=True)
    ]
    assert run.batches == kafkas
