"""Subscriptions by pattern (GN 2.60-2.66, 6.2)."""

import pytest

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer import patterns
from twisted_broker.coordinator.consumer.patterns import resolve_patterns
from twisted_broker.linear_pattern import LONGEST
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.schema import run_whole

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)
BOTH = {(TA, number) for number in range(4)} | {(TB, number) for number in range(3)}


def run_with(*members, **fields):
    """A group whose members share a pattern that is resolved."""
    run = ConsumerRun(image(ONE, TWO, offset=10), assignment_interval_ms=0)
    for member_id in members:
        run.join(member_id, names=None, pattern="t.*", **fields)
    run.resolve()
    return run


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", r"(?=a)", r"(a)\1", "a" * (LONGEST + 1)])
def test_what_is_no_pattern_is_refused_at_once(pattern):
    """GN 2.60, 2.62: look-around and back references are none, nor what is beyond the bounds."""
    run = run_with("m")
    with pytest.raises(BrokerError, match="is not a valid regular expression") as refusal:
        run.send("m", 1, pattern=pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("t", ()),
        ("t.", ("ta", "tb")),
        ("^ta$|x", ("ta",)),
        ("(?:ta)|(?:tb)", ("ta", "tb")),
        ("(^ta)|(^tb)", ("ta", "tb")),
        (".*", ("__consumer_offsets", "ta", "tb")),
    ],
)
def test_whole_names_match_internal_ones_included(pattern, topics):
    """GN 2.62, 2.63."""
    now = image(TWO, ONE, topic("__consumer_offsets", bytes(16), []), offset=7)
    resolved = run_whole(resolve_patterns([pattern], now, lambda name: True, 55))[pattern]
    assert (resolved.topics, resolved.version, resolved.timestamp_ms) == (topics, 7, 55)


def test_topics_that_may_not_be_described_do_not_match():
    """GN 2.63: at the join, and at each refresh."""
    run = run_with("m")
    assert run.send("m", 1).assignment == BOTH
    run.wall_ms += 20_000
    run.resolve(may_describe=lambda name: name == "tb")
    told = run.send("m", 2)
    assert told.assignment == {(TB, number) for number in range(3)}


def test_a_new_pattern_waits_for_its_resolution():
    """GN 2.20, 2.64, 2.65."""
    run = ConsumerRun(image(ONE, TWO), assignment_interval_ms=0)
    joined = run.join("m", names=None, pattern="t.*")
    assert (joined.member_epoch, joined.assignment, run.group.epoch) == (1, frozenset(), 1)
    assert run.refresh_wanted
    run.resolve()
    assert run.group.epoch == 2
    assert run.send("m", 1).assignment == BOTH


def test_a_pattern_that_others_have_is_used_as_resolved():
    """GN 2.20, 2.60."""
    run = run_with("m")
    run.send("m", 1)
    joined = run.join("n", names=None, pattern="t.*")
    assert (joined.member_epoch, run.group.epoch) == (3, 3)
    assert not run.refresh_wanted


def test_a_pattern_that_nothing_matches_bumps_nothing():
    """GN 2.65: its record is written."""
    run = ConsumerRun(image(ONE), assignment_interval_ms=0)
    run.join("m", names=("ta",), pattern="x.*")
    assert run.group.epoch == 2
    run.resolve()
    assert run.group.epoch == 2 and run.group.patterns["x.*"].topics == ()


def test_names_and_a_pattern_are_a_union():
    """GN 2.61."""
    run = ConsumerRun(image(ONE, TWO), assignment_interval_ms=0)
    run.join("m", names=("ta",), pattern="tb")
    run.resolve()
    assert run.send("m", 2).assignment == BOTH


def test_giving_up_a_pattern_takes_its_topics_away():
    """GN 2.20, 2.33, 2.60: to none counts as resolved; only the last one's tombstone is written."""
    run = run_with("m", "n")
    for _ in range(2):
        for member_id in "mn":
            run.send(member_id, run.group.members[member_id].epoch, owned=frozenset())
    run.send("m", run.group.members["m"].epoch, pattern="")
    assert not run.group.members["m"].assigned and "t.*" in run.group.patterns
    run.send("n", -1)
    assert not run.group.patterns


def test_another_pattern_before_it_is_resolved_takes_the_old_ones_topics_away():
    """GN 2.33, 6.2: one that is not resolved counts as no topics, without a bump."""
    run = run_with("m")
    run.send("m", 1)
    epoch = run.group.epoch
    told = run.send("m", 2, pattern="tb")
    assert (told.member_epoch, told.assignment, run.group.epoch) == (2, frozenset(), epoch)
    run.wall_ms += 20_000
    run.resolve()
    assert run.send("m", 2, owned=frozenset()).assignment == {(TB, n) for n in range(3)}


def test_a_pattern_stays_while_another_member_has_it():
    """GN 2.52, 2.60."""
    run = run_with("m", "n")
    run.send("m", -1)
    assert "t.*" in run.group.patterns
    run.send("n", -1)
    assert not run.group.patterns


def test_other_topics_of_a_pattern_bump_although_the_hash_stays():
    """GN 2.65: a member names the topic that the pattern now matches, too."""
    run = ConsumerRun(image(ONE), assignment_interval_ms=0)
    run.join("a")
    run.join("m", names=None, pattern="t.*")
    before = run.group.metadata_hash
    run.resolve()
    assert (run.group.epoch, run.group.metadata_hash) == (3, before)
    assert run.send("a", 2).assignment == {(TA, 0), (TA, 1)}


def test_a_pattern_given_up_while_it_is_resolved_is_not_written():
    """GN 2.65."""
    run = run_with("m")
    resolved = run_whole(resolve_patterns(["t.*", "gone"], run.image, lambda name: True, 1))
    decision = run_whole(patterns.patterns_resolved(run.group, resolved, run.environment()))
    assert [getattr(key, "regular_expression", None) for key, _ in decision.records] == ["t.*"]


def test_when_a_heartbeat_begins_a_refresh():
    """GN 2.64."""
    run = run_with("m")

    def is_begun():
        run.refresh_wanted = False
        run.send("m", run.group.members["m"].epoch)
        return run.refresh_wanted

    assert not is_begun()
    run.topics_created_version = 11
    assert not is_begun(), "not within 10 s of the last one"
    run.wall_ms += 10_001
    assert is_begun(), "topics were created since"
    run.group.pattern_refresh.is_running = True
    assert not is_begun()
    run.group.pattern_refresh.is_running = False
    run.topics_created_version = 10
    assert not is_begun(), "no topic is newer than the last refresh"
    run.wall_ms += 600_000
    assert is_begun(), "it is old"
    run.send("m", run.group.members["m"].epoch, pattern="", names=("ta",))
    assert not is_begun(), "no patterns"


def test_a_group_takes_so_many_patterns(monkeypatch):
    """GN 2.150."""
    monkeypatch.setattr(patterns, "MOST_PATTERNS", 1)
    run = run_with("m")
    run.join("n", names=None, pattern="t.*")
    with pytest.raises(BrokerError) as refusal:
        run.join("o", names=None, pattern="u.*")
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_members_subscribe_alike_by_one_pattern_or_by_names_only():
    """GN 2.66."""
    run = run_with("m", "n")
    assert run.group.subscriptions.are_alike()
    run.join("o", names=("ta",))
    assert not run.group.subscriptions.are_alike()
    assert run_with("m", rack_id="r").group.subscriptions.are_alike()


def test_a_pattern_that_only_kafka_reads_stays_as_it_was_resolved():
    """GN 2.62: a log may bring one."""
    now = image(ONE)
    resolved = run_whole(resolve_patterns([r"\bta\b", "t."], now, lambda name: True, 0))
    assert resolved.keys() == {"t."}


def test_a_refresh_over_many_names_pauses():
    """GN 0.8."""
    many = image(*(topic(f"t{number}", number.to_bytes(16, "big"), []) for number in range(1_600)))
    assert len(list(resolve_patterns(["x"], many, lambda name: True, 0))) == 3
