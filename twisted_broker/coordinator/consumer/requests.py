"""The heartbeat of a consumer group without its versions, its answer, and what can be said against
it without the group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `HeartbeatRequest`, `HeartbeatAnswer`, `check_request`, `is_blank`.

1. None, or -1, means: as in the last heartbeat. An empty list is a subscription to nothing, or
   says that nothing is owned.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid`.
Not here: permissions and the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twisted_broker.coordinator.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, NO_TIMEOUT
from twisted_broker.coordinator.consumer.partitions import Target
from twisted_broker.coordinator.group_records import fits_record
from twisted_broker.wire.errors import BrokerError, ErrorCode

MOST_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. `owned`: the partitions that the member says it has."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Target | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as clients do after an error."""
        return (
            self.rebalance_timeout_ms != NO_TIMEOUT
            and (self.names is not None or self.pattern is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`assignment` None: as in the last answer."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Target | None = None


def check_request(
    request: HeartbeatRequest, assignors: Sequence[str], may_lack_member_id: bool
) -> None:
    """`may_lack_member_id`: version 0, where the coordinator makes the id of a new member. Raises
    BrokerError.
    """
    has_no_id = request.member_epoch == JOIN_EPOCH and may_lack_member_id
    if not has_no_id and is_blank(request.member_id):
        raise _invalid("MemberId can't be empty.")
    if is_blank(request.group_id):
        raise _invalid("GroupId can't be empty.")
    if request.instance_id is not None and is_blank(request.instance_id):
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id is not None and is_blank(request.rack_id):
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if not fits_record(request.group_id, request.member_id):
        raise _invalid("The ids are longer than a record can hold.")
    if request.assignor is not None and request.assignor not in assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.names is None and request.pattern is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def is_blank(text: str) -> bool:
    """As Java's `trim().isEmpty()`."""
    return all(character <= " " for character in text)


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, message)
