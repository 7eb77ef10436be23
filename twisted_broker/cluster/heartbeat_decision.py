"""The controller's decision on a broker's heartbeat: unfence it, fence it, let it shut down,
take its failed directories out.

Owns `heartbeat` and, in it, the controller's side of a controlled shutdown:
`_begin_controlled_shutdown` moves the leaders, `_may_shut_down` grants the end. The broker's side
is `broker_controlled_shutdown.py`.

1. A heartbeat that wants to shut down, of a broker that leads something, begins its controlled
   shutdown. The broker may stop when it leads nothing, and every broker that serves has the
   metadata that says so.
2. A heartbeat names all directories that failed since the broker started; those that are out of its
   registration already change nothing. A broker without any directory left is fenced, and may stop.

Source: Kafka's `BrokerHeartbeatManager`, `ReplicationControlManager`; KRAFT 3.5; `RL 8.2`. Not
here: the sessions, and the states of a broker (`broker_registry.py`); time (an
argument, monotonic ms).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from twisted_broker.cluster.broker_registry import (
    BrokerSession,
    BrokerSessions,
    check_epoch,
    fence,
)
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.records import CORDON_LEVEL
from twisted_broker.image.entries import BrokerRegistration
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.broker_lifecycle import BrokerHeartbeatRequest
from twisted_broker.wire.schema import Record


class HeartbeatDecision(NamedTuple):
    """A heartbeat's outcome: records to write, and the answer once they are committed."""

    records: list[Record]
    caught_up: bool
    fenced: bool = False
    should_shut_down: bool = False
    enters_shutdown: bool = False


def heartbeat(
    view: ClusterView, request: BrokerHeartbeatRequest, sessions: BrokerSessions, now_ms: int
) -> Generator[None, None, HeartbeatDecision]:
    """Decides what a heartbeat changes. Pauses where the broker has many partitions. Raises
    BrokerError(STALE_BROKER_EPOCH).
    """
    broker = check_epoch(view.image, request.broker_id, request.broker_epoch)
    session = sessions.touch(broker.id, broker.epoch, request.current_metadata_offset, now_ms)
    caught_up = request.current_metadata_offset >= broker.epoch
    if _has_no_directory_left(broker, request):
        return HeartbeatDecision(
            [] if broker.fenced else (yield from fence(view, broker)),
            caught_up,
            fenced=True,
            should_shut_down=request.want_shut_down,
        )
    failed = yield from _failed_directories(view, broker, request)
    if failed:
        return HeartbeatDecision(failed, caught_up, fenced=broker.fenced)
    found = _cordon(view, broker, request)
    if broker.fenced:
        if request.want_shut_down or request.want_fence or not caught_up:
            return HeartbeatDecision(
                found, caught_up, fenced=True, should_shut_down=request.want_shut_down
            )
        return HeartbeatDecision(found + (yield from _unfence(view, broker)), caught_up)
    if broker.in_controlled_shutdown:
        if not (yield from _may_shut_down(view, broker, sessions, session)):
            return HeartbeatDecision(found, caught_up)
        return HeartbeatDecision(
            found + (yield from fence(view, broker)), caught_up, fenced=True, should_shut_down=True
        )
    if request.want_fence or (
        request.want_shut_down and not (yield from view.leads_any(broker.id))
    ):
        return HeartbeatDecision(
            found + (yield from fence(view, broker)),
            caught_up,
            fenced=True,
            should_shut_down=request.want_shut_down,
        )
    if request.want_shut_down:
        moved = yield from _begin_controlled_shutdown(view, broker)
        return HeartbeatDecision(found + moved, caught_up, enters_shutdown=True)
    return HeartbeatDecision(found, caught_up)


def _begin_controlled_shutdown(
    view: ClusterView, broker: BrokerRegistration
) -> Generator[None, None, list[Record]]:
    """Takes the broker out of all ISRs where another one is left, and gives what it leads to
    others.
    """
    change = records.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1
    )
    return [change, *(yield from view.changes_without_broker(broker.id))]


def _may_shut_down(
    view: ClusterView, broker: BrokerRegistration, sessions: BrokerSessions, session: BrokerSession
) -> Generator[None, None, bool]:
    """Whether a controlled shutdown is over: the broker leads nothing, and all that live have seen
    who leads now.
    """
    if session.shutdown_offset is None:
        # Begun under an earlier controller: the others must have seen all that is known here.
        session.shutdown_offset = view.image.offset
    lowest = sessions.lowest_offset(view.image)
    seen = lowest is None or session.shutdown_offset <= lowest
    return seen and not (yield from view.leads_any(broker.id))


def note_shutdown_offset(
    sessions: BrokerSessions, broker_id: int, broker_epoch: int, offset: int, now_ms: int
) -> None:
    """Remembers the offset that all others must have seen before the broker may go."""
    session = sessions.touch(broker_id, broker_epoch, -1, now_ms)
    if session.shutdown_offset is None:
        session.shutdown_offset = offset


def _unfence(view: ClusterView, broker: BrokerRegistration) -> Generator[None, None, list[Record]]:
    change = records.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1
    )
    return [change, *(yield from view.elections_with_broker(broker.id))]


def _has_no_directory_left(broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> bool:
    """Whether all its directories have failed. No record could say so (an empty list changes
    nothing), and such a broker could serve nothing: it is fenced instead.
    """
    return bool(broker.directories) and set(broker.directories) <= {
        bytes(directory) for directory in request.offline_log_dirs
    }


def _failed_directories(
    view: ClusterView, broker: BrokerRegistration, request: BrokerHeartbeatRequest
) -> Generator[None, None, list[Record]]:
    """Directories that the broker lost: it leaves the ISRs of what lay there.

    The rest of the heartbeat is decided by the next one.
    """
    failed = {bytes(directory) for directory in request.offline_log_dirs} & set(broker.directories)
    if not failed:
        return []
    online = [directory for directory in broker.directories if directory not in failed]
    change = records.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=online
    )
    return [change, *(yield from view.changes_without_broker(broker.id, directories=failed))]


def _cordon(
    view: ClusterView, broker: BrokerRegistration, request: BrokerHeartbeatRequest
) -> list[Record]:
    """Directories that take nothing new any more, or again; below metadata.version 4.3 no record
    can say it.
    """
    if request.cordoned_log_dirs is None or view.image.metadata_version < CORDON_LEVEL:
        return []
    cordoned = tuple(sorted(bytes(directory) for directory in request.cordoned_log_dirs))
    if cordoned == broker.cordoned or not (cordoned or broker.cordoned):
        return []
    return [
        records.BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]
