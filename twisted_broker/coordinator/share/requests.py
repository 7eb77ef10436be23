"""The heartbeat of a share group, and what can be said against it without the group.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareHeartbeatRequest`, `check_request`. The answer is that of consumer groups.

1. None means: as in the last heartbeat.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid`. Not
here: permissions and the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from twisted_broker.coordinator.consumer.member import JOIN_EPOCH, LEAVE_EPOCH
from twisted_broker.coordinator.consumer.requests import is_blank
from twisted_broker.coordinator.group_records import fits_record
from twisted_broker.wire.errors import BrokerError, ErrorCode

MOST_ID_CHARACTERS = 36


@dataclass(frozen=True, slots=True)
class ShareHeartbeatRequest:
    """A ShareGroupHeartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


def check_request(request: ShareHeartbeatRequest) -> None:
    """Raises BrokerError."""
    if is_blank(request.member_id):
        raise _invalid("MemberId can't be empty.")
    if is_blank(request.group_id):
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and is_blank(request.rack_id):
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if not fits_record(request.group_id, request.member_id):
        raise _invalid("The ids are longer than a record can hold.")


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, message)
