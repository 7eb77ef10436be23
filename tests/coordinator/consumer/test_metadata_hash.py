"""The hash of a group's topics, against Kafka's own."""

from dataclasses import replace

import pytest

from tests.coordinator.consumer.topics import TA, TB, image, topic, topic_id
from twisted_broker.coordinator.consumer import metadata_hash
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes, topic_hash
from twisted_broker.wire.schema import run_whole

FOO = topic("foo", topic_id("AAAAAAAAAAEAAAAAAAAAAg"), [[None], [None]])
BAR = topic("bär", topic_id("__________0AAAAAAAAABA"), [["r2", "r1"], ["r1"], []])
ONE = topic("ta", TA, [[None]] * 4)
TWO = topic("tb", TB, [[None]] * 3)


def of_group(*topics, names=None):
    names = [each.name for each in topics] if names is None else names
    return run_whole(TopicHashes().of_group(image(*topics), names))


@pytest.mark.parametrize(
    ("each", "expected"),
    [(FOO, -5159372484819424185), (BAR, -6272374011421121037), (ONE, 3613806497439148895)],
)
def test_of_a_topic_as_kafkas_library_computes_it(each, expected):
    """GN 2.72, 2.73."""
    assert run_whole(topic_hash(image(each), each)) == expected


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ((FOO,), 7735322124282634187),
        ((FOO, BAR), 4361736496382137703),
        ((ONE,), 1770705088942171562),
        ((TWO, ONE), 656405772985124202),
        ((), 0),
    ],
)
def test_of_a_group_as_kafka_wrote_it(topics, expected):
    """GN 2.73: in whatever order the topics are named; two of the values lie in Kafka's logs."""
    assert of_group(*topics) == expected


def test_names_that_do_not_exist_count_for_nothing():
    """GN 2.72."""
    assert of_group(FOO, names=["foo", "nope"]) == of_group(FOO)


@pytest.mark.parametrize(
    "other",
    [
        topic("fop", FOO.id, [[None], [None]]),
        topic("foo", TA, [[None], [None]]),
        topic("foo", FOO.id, [[None], [None], [None]]),
        topic("foo", FOO.id, [["r1"], [None]]),
        topic("foo", FOO.id, [[None], ["r1"]]),
        topic("foo", FOO.id, [["r1", "r1"], [None]]),
    ],
)
def test_each_field_changes_it(other):
    """GN 2.72, 6.8: name, id, count, racks and their repeats."""
    assert of_group(other) != of_group(FOO)


def test_the_order_of_replicas_does_not_change_it():
    """GN 2.72: racks are sorted."""
    assert of_group(topic("foo", FOO.id, [["r1", "r2"]])) == of_group(
        topic("foo", FOO.id, [["r2", "r1"]])
    )


def test_a_topic_is_hashed_once_for_each_of_its_images(monkeypatch):
    """GN 2.74: until the topic or the racks of brokers change."""
    grown = topic("foo", FOO.id, [[None]] * 3)
    expected, hashed = of_group(grown), []
    monkeypatch.setattr(
        metadata_hash, "topic_hash", lambda _, each: hashed.append(each.name) or topic_hash(_, each)
    )
    hashes, now = TopicHashes(), image(FOO, ONE)
    for _ in range(3):
        run_whole(hashes.of_group(now, ["foo", "ta"]))
    assert hashed == ["foo", "ta"]
    later = replace(image(grown, ONE), brokers=now.brokers)
    assert run_whole(hashes.of_group(later, ["foo"])) == expected
    run_whole(hashes.of_group(later, ["ta"]))
    assert hashed == ["foo", "ta", "foo"]
    run_whole(hashes.of_group(image(grown, ONE), ["ta"]))
    assert hashed == ["foo", "ta", "foo", "ta"], "brokers changed"


def test_long_topics_and_long_lists_of_them_pause():
    """GN 0.8."""
    many = [topic(f"t{number}", number.to_bytes(16, "big"), [[]]) for number in range(1_200)]
    steps = TopicHashes().of_group(image(*many), [each.name for each in many])
    assert len(list(steps)) == 2
    assert len(list(topic_hash(image(), topic("long", TA, [[None]] * 1_700)))) == 3
