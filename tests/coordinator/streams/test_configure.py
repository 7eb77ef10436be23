"""Kafka's cases of topics (GN 6.14): InternalTopicManagerTest, RepartitionTopicsTest,
ChangelogTopicsTest, CopartitionedTopicsEnforcerTest.
"""

import pytest

from tests.coordinator.streams.streams_run import info, subtopology, topics, topology
from twisted_broker.coordinator.streams.configure import Status, StatusCode, configure, summary
from twisted_broker.coordinator.streams.topology import Topology
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.schema import run_whole

WRITER = subtopology("0", ["a", "b"], sinks=["r"])


def configured(image, *subtopologies):
    return run_whole(configure(Topology(topology(*subtopologies)), image))


def decided(result):
    """Partitions of internal topics, and tasks of subtopologies."""
    counts = {
        topic.name: topic.partitions
        for each in result.subtopologies.values()
        for topic in (*each.repartition_sources, *each.changelogs)
    }
    return counts | {id: each.tasks for id, each in result.subtopologies.items()}


def refused(image, *subtopologies):
    with pytest.raises(BrokerError) as error:
        configured(image, *subtopologies)
    assert error.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
    return error.value.message


def test_missing_sources_come_first_and_three_are_named():
    """GN 4.15."""
    result = configured(topics(), subtopology("0", ["e", "d", "c", "b"], repartition=["r"]))
    assert result.problem == Status(
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics b, c, d and 1 additional topics are missing.",
    )
    assert (result.subtopologies, result.to_create, result.is_ready) == ({}, (), False)
    assert summary(["b", "a"]) == "a, b"


def test_internal_topics_that_are_missing_are_to_be_created():
    """GN 4.16: with what the request says of them."""
    chain = (
        subtopology("0", ["in"], sinks=["rep"]),
        subtopology(
            "1",
            repartition=[info("rep", replication_factor=2, retention_ms="-1")],
            changelogs=[info("log", cleanup_policy="compact")],
        ),
    )
    result = configured(topics(**{"in": 4}), *chain)
    assert result.problem == Status(
        StatusCode.MISSING_INTERNAL_TOPICS, "Internal topics are missing: log, rep"
    )
    log, rep = result.to_create
    assert (log.partitions, log.replication_factor, log.configs) == (
        4,
        0,
        (("cleanup.policy", "compact"),),
    )
    assert (rep.partitions, rep.replication_factor, rep.configs) == (
        4,
        2,
        (("retention.ms", "-1"),),
    )
    one_there = configured(topics(**{"in": 4, "rep": 4}), *chain)
    assert [each.name for each in one_there.to_create] == ["log"]
    ready = configured(topics(**{"in": 4, "rep": 4, "log": 4}), *chain)
    assert ready.is_ready and decided(ready) == {"rep": 4, "log": 4, "0": 4, "1": 4}


def test_an_internal_topic_with_another_number_does_not_fit():
    """GN 4.16."""
    result = configured(topics(**{"in": 4, "log": 3}), subtopology("0", ["in"], changelogs=["log"]))
    assert result.problem == Status(
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic log has different number of partitions: expected 4, found 3",
    )
    assert result.to_create == ()


@pytest.mark.parametrize(
    ("subtopologies", "expected"),
    [
        (
            [subtopology("0", ["a", "b"], sinks=["r"]), subtopology("1", repartition=["r"])],
            {"r": 5},
        ),
        (
            [subtopology("0", ["a"], sinks=["r"]), subtopology("1", repartition=[info("r", 7)])],
            {"r": 7},
        ),
        (
            [
                subtopology("0", repartition=["s"], sinks=["t"]),
                subtopology("1", ["a"], sinks=["r"]),
                subtopology("2", ["b"], repartition=["r"], sinks=["s"]),
                subtopology("3", repartition=["t"]),
            ],
            {"r": 3, "s": 5, "t": 5},
        ),
        ([subtopology("0", ["a", "b"], changelogs=["log"])], {"log": 5}),
        (
            [
                subtopology("0", ["a"], sinks=["r"]),
                subtopology("1", repartition=[info("r", 9)], changelogs=["log"]),
            ],
            {"r": 9, "log": 9, "1": 9},
        ),
    ],
    ids=["the most of the sources", "a number given", "a chain", "a changelog", "behind a number"],
)
def test_partitions_of_internal_topics(subtopologies, expected):
    """GN 4.15, 4.17."""
    found = decided(configured(topics(a=3, b=5), *subtopologies))
    assert {name: found[name] for name in expected} == expected


def test_a_topology_that_can_never_run():
    """GN 4.15."""
    image = topics(a=3)
    assert "never used as a sink" in refused(image, subtopology("0", ["a"], repartition=["r"]))
    loop = (
        subtopology("0", repartition=["r"], sinks=["s"]),
        subtopology("1", repartition=["s"], sinks=["r"]),
    )
    assert "loops" in refused(image, *loop)
    assert refused(image, subtopology("7")) == "No source topics found for subtopology 7"


@pytest.mark.parametrize(
    ("sources", "repartition", "group", "expected"),
    [
        (["a", "c"], [], ([0, 1], []), None),
        (["a", "b"], [], ([0, 1], []), "same number of partitions: [{a=3, b=5}]"),
        (["a"], ["r"], ([0], [0]), {"r": 3}),
        (["a"], [info("r", 3)], ([0], [0]), {"r": 3}),
        (
            ["a"],
            [info("r", 4)],
            ([0], [0]),
            "[4] of repartition topic [r] doesn't match number",
        ),
        (["a"], ["r", info("s", 4)], ([], [0, 1]), {"r": 4, "s": 4}),
        (
            ["a"],
            [info("r", 2), info("s", 4)],
            ([], [0, 1]),
            "the same number of partitions: [{r=2, s=4}]",
        ),
        (["a"], [], ([], []), None),
    ],
    ids=[
        "alike",
        "not alike",
        "follows the source",
        "a number that fits",
        "a number that does not",
        "a number rules",
        "two numbers",
        "no topics",
    ],
)
def test_copartition_groups(sources, repartition, group, expected):
    """GN 4.15."""
    sinks = [each if isinstance(each, str) else each.name for each in repartition]
    result = configured(
        topics(a=3, b=5, c=3),
        subtopology("0", sources, repartition=repartition, copartition=[group]),
        subtopology("1", ["b"], sinks=sinks),
    )
    if isinstance(expected, str):
        assert result.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
        assert expected in result.problem.detail
    else:
        found = decided(result)
        assert {name: found[name] for name in sinks} == (expected or {})


def test_repartition_topics_alone_take_the_most():
    """GN 4.15."""
    result = configured(
        topics(a=3, b=5),
        subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", ["b"], sinks=["s"]),
        subtopology("2", repartition=["r", "s"], copartition=[([], [0, 1])]),
    )
    found = decided(result)
    assert (found["r"], found["s"], found["2"]) == (5, 5, 5)
