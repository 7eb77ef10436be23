"""What can be said against a heartbeat without its group (GN 2.8)."""

from dataclasses import replace

import pytest

from twisted_broker.coordinator.consumer.requests import HeartbeatRequest, check_request
from twisted_broker.wire.errors import BrokerError, ErrorCode

ASSIGNORS = ("uniform", "range")
JOIN = HeartbeatRequest("g", "m", 0, rebalance_timeout_ms=5, names=(), owned=frozenset())
GOING_ON = HeartbeatRequest("g", "m", 7)

# In the order of the checks: each is found before all that follow.
REFUSED = [
    (replace(JOIN, member_id=""), "MemberId can't be empty."),
    (replace(GOING_ON, member_id=" \t"), "MemberId can't be empty."),
    (replace(JOIN, group_id=" "), "GroupId can't be empty."),
    (replace(JOIN, instance_id=""), "InstanceId can't be empty."),
    (replace(JOIN, rack_id=""), "RackId can't be empty."),
    (replace(JOIN, rebalance_timeout_ms=-1), "RebalanceTimeoutMs must be provided"),
    (replace(JOIN, owned=None), "TopicPartitions must be empty"),
    (replace(JOIN, owned=frozenset({(b"", 0)})), "TopicPartitions must be empty"),
    (replace(JOIN, names=None), "Either SubscribedTopicNames or SubscribedTopicRegex"),
    (replace(GOING_ON, member_epoch=-2), "InstanceId can't be null."),
    (replace(GOING_ON, member_epoch=-3), "MemberEpoch is invalid."),
    (replace(GOING_ON, member_id="m" * 32_768), "longer than a record can hold"),
]


@pytest.mark.parametrize(("request_", "message"), REFUSED)
def test_refused_as_invalid(request_, message):
    with pytest.raises(BrokerError, match=message) as refusal:
        check_request(replace(request_, assignor="mine"), ASSIGNORS, False)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("epoch", [0, 7, -1])
def test_an_assignor_that_is_not_configured_is_refused_last(epoch):
    asked = replace(JOIN, member_epoch=epoch, assignor="mine")
    with pytest.raises(BrokerError, match="Supported assignors: uniform, range") as refusal:
        check_request(asked, ASSIGNORS, False)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize(
    "taken",
    [
        JOIN,
        GOING_ON,
        replace(JOIN, names=None, pattern=""),
        replace(JOIN, assignor="range"),
        replace(GOING_ON, member_epoch=-1),
        replace(GOING_ON, member_epoch=-2, instance_id="i"),
    ],
)
def test_taken(taken):
    check_request(taken, ASSIGNORS, False)


def test_only_a_join_of_version_0_may_lack_the_member_id():
    """GN 2.8, 2.12."""
    check_request(replace(JOIN, member_id=""), ASSIGNORS, True)
    with pytest.raises(BrokerError):
        check_request(replace(GOING_ON, member_id=""), ASSIGNORS, True)
