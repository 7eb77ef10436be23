"""What is to be done in the target: by the states of a topic on both sides."""

from __future__ import annotations

import pytest

from twisted_broker.mirror.plan import SOURCE_SETTING, TopicState, plan_for, source_name

ID = bytes(range(16))
SOURCE = TopicState(
    ID,
    3,
    {
        "retention.ms": "5",
        "leader.replication.throttled.replicas": "*",
        "remote.storage.enable": "true",
        "confluent.tier.enable": "true",
        SOURCE_SETTING: "the source is a mirror itself",
    },
)
NAME = source_name("c", ID)


def target(partitions: int = 3, source: str = NAME, **settings: str) -> TopicState:
    held = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicState(bytes(16), partitions, held | ({SOURCE_SETTING: source} if source else {}))


def test_a_topic_that_is_not_there_is_made_with_what_is_the_sources() -> None:
    plan = plan_for("t", "c", SOURCE, None)
    assert plan.create and plan.partitions == 3
    assert plan.settings == {"retention.ms": "5", SOURCE_SETTING: NAME}
    assert plan.unknown == ("confluent.tier.enable",)


def test_a_value_that_only_an_older_source_takes_becomes_the_nearest_one() -> None:
    """Kafka 3.9 has segments of less than 1 MiB; nothing is changed again in the next round."""
    source = SOURCE._replace(settings={"segment.bytes": "65536"})
    assert plan_for("t", "c", source, None).settings["segment.bytes"] == "1048576"
    assert not plan_for("t", "c", source, target(segment_bytes="1048576")).settings


def test_nothing_to_do() -> None:
    plan = plan_for("t", "c", SOURCE, target(retention_ms="5"))
    assert (plan.refusal, plan.create, plan.partitions, plan.settings) == ("", False, 0, {})


def test_what_differs_follows_both_ways() -> None:
    plan = plan_for("t", "c", SOURCE, target(1, retention_ms="6", segment_ms="7"))
    assert plan.partitions == 3
    assert plan.settings == {"retention.ms": "5", "segment.ms": None}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (target(source=""), "is no mirror"),
        (target(source=source_name("another", ID)), "is a mirror of another/"),
        (target(source=source_name("c", bytes(15) + b"\1")), "is a mirror of c/"),
        (target(4), "has 4 partitions in the target, 3 in the source"),
    ],
)
def test_nothing_is_taken_over(state: TopicState, words: str) -> None:
    plan = plan_for("t", "c", SOURCE, state)
    assert words in plan.refusal and "\n" not in plan.refusal
    assert not plan.create and not plan.settings


def test_a_cluster_without_topic_ids() -> None:
    assert source_name("c", bytes(16)) == "c"


def test_topic_ids_that_come_with_an_upgrade_are_noted() -> None:
    """A ZooKeeper cluster gives its topics ids with inter-broker protocol 2.8: they are the topics
    that were mirrored by name before.
    """
    plan = plan_for("t", "c", SOURCE, target(source="c", retention_ms="5"))
    assert not plan.refusal and plan.settings == {SOURCE_SETTING: NAME}
    plan = plan_for("t", "c", SOURCE, target(source="another"))
    assert "is a mirror of another" in plan.refusal
    plan = plan_for("t", "c", SOURCE._replace(topic_id=bytes(16)), target())
    assert "is a mirror of c/" in plan.refusal, "an id is not lost but with its topic"
