"""Who may commit and fetch offsets of a consumer group (GN 2.90, 2.94, 6.6)."""

import pytest

from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer.offsets import check_commit
from twisted_broker.coordinator.member_epochs import check_fetch
from twisted_broker.wire.errors import BrokerError, ErrorCode

STALE, UNKNOWN = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def group():
    """`a` is at epoch 3: it has ta-0 and ta-1 since 2, gives up ta-2 and ta-3, and got nothing at
    3; `b` waits at 4. `late` got tb at 4.
    """
    run = ConsumerRun(
        image(topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]])), assignment_interval_ms=0
    )
    run.join("a")
    run.join("late", names=("tb",))
    run.send("a", 2)
    run.join("b")
    run.send("a", 3)
    return run.group


def outcome(check, *arguments):
    try:
        check(*arguments)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize(
    ("member_id", "epoch", "partitions", "expected"),
    [
        ("a", 3, [(TA, 0)], ErrorCode.NONE),
        ("a", 3, [(TB, 0)], ErrorCode.NONE),
        ("a", 2, [(TA, 0), (TA, 1)], ErrorCode.NONE),
        ("a", 2, [(TA, 2), (TA, 3)], ErrorCode.NONE),
        ("a", 2, [(TA, 0), (TB, 0)], STALE),
        ("a", 1, [(TA, 0)], STALE),
        ("a", -1, [(TA, 0)], STALE),
        ("a", 4, [(TA, 0)], STALE),
        ("late", 2, [(TB, 0)], STALE),
        ("b", 3, [(TA, 0)], STALE),
        ("stranger", 3, [(TA, 0)], UNKNOWN),
        ("stranger", -1, [(TA, 0)], UNKNOWN),
        ("", -1, [(TA, 0)], UNKNOWN),
    ],
)
def test_commits(group, member_id, epoch, partitions, expected):
    """GN 2.90: the whole request stands or falls."""
    assert outcome(check_commit, group, member_id, epoch, partitions, True) is expected


def test_versions_without_member_epochs_cannot_commit(group):
    """GN 2.90."""
    assert outcome(check_commit, group, "a", 3, [], False) is ErrorCode.UNSUPPORTED_VERSION
    assert outcome(check_commit, group, "stranger", 3, [], False) is UNKNOWN


def test_anybody_without_an_epoch_may_commit_to_an_empty_group():
    """GN 2.90: tools and simple consumers."""
    group = ConsumerRun(image()).group
    assert outcome(check_commit, group, "", -1, [(TA, 0)], False) is ErrorCode.NONE
    assert outcome(check_commit, group, "a", 0, [(TA, 0)], True) is UNKNOWN


@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 3, ErrorCode.NONE),
        ("a", 2, STALE),
        ("a", 4, STALE),
        ("a", -1, STALE),
        ("stranger", 3, UNKNOWN),
        (None, 3, UNKNOWN),
    ],
)
def test_fetches(group, member_id, epoch, expected):
    """GN 2.94: a member id without an epoch is stale."""
    assert outcome(check_fetch, group, member_id, epoch) is expected
