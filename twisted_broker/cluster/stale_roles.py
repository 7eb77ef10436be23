"""Whether this broker's roles may have gone to others while its process stood still.

Owns `StaleRoles`. A process that was stopped (SIGSTOP, a suspended machine) for longer than its
session finds requests in its sockets, and reads them before it reads that it coordinates nothing
any more. An append by its old roles is refused by the replicas; what is answered from memory is
not: a wrong refusal is final for a client (INVALID_TXN_STATE, FENCED_INSTANCE_ID), and an old
offset is read again. So coordinators answer NOT_COORDINATOR until the roles are known again.

1. Nothing but the clock shows a stop before the sockets are read: who is about to answer asks. A
   stop is a gap between two looks at it; the longest without a request is `_LOOK_SECONDS`.
2. Half a session is a long stop: the session began up to a heartbeat before it.
3. It is over when a fetch of metadata that was sent after the stop has brought the image to the
   high watermark, and the roles of that image are applied. While no controller answers it is not.
   A member of a ZooKeeper cluster has `zookeeper/confirmed_roles.py` instead of an image.
4. A broker that ran all the time and is only cut off from its controller goes on, as in Kafka: it
   cannot know more, and the controller may be gone for good.

Source: our own; Kafka answers from old roles. State: two times; a restart begins anew. Not here:
produce and fetch (an append with acks=1 may be lost with its leader at any time, clients send the
leader epoch that they know).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.logger import Logger

from twisted_broker.interfaces import IClock
from twisted_broker.periodic import PeriodicTask

_LOOK_SECONDS = 1.0
_logger = Logger()


class Metadata(Protocol):
    """What is asked of an observer: as of when it has all, and to hurry."""

    caught_up_as_of: float

    def hurry(self) -> None: ...


class StaleRoles:
    """`are_applied()`: whether all roles of the observer's image are taken over."""

    __slots__ = (
        "_are_applied",
        "_clock",
        "_long",
        "_looked",
        "_observer",
        "_stopped_until",
        "_task",
    )

    def __init__(
        self,
        clock: IClock,
        observer: Metadata,
        session_ms: int,
        are_applied: Callable[[], bool],
    ) -> None:
        self._clock, self._observer, self._are_applied = clock, observer, are_applied
        self._long = max(session_ms / 2000, 2 * _LOOK_SECONDS)
        self._looked = 0.0
        self._stopped_until: float | None = None
        self._task = PeriodicTask(clock, self._look, "the look for a stop of the process")

    def start(self) -> None:
        self._looked = self._clock.seconds()
        self._task.start(_LOOK_SECONDS)

    def stop(self) -> None:
        self._task.stop()

    def _look(self) -> None:
        self.may_be()

    def may_be(self) -> bool:
        """Whether others may have this broker's roles by now."""
        now = self._clock.seconds()
        stood, self._looked = now - self._looked, now
        if self._task.running and stood > self._long:
            self._stopped_until = now
            self._observer.hurry()
            _logger.warn(
                "this process stood still for {seconds:.1f} s: its groups and transactions wait "
                "until the metadata has caught up",
                seconds=stood,
            )
        if self._stopped_until is None:
            return False
        if self._observer.caught_up_as_of < self._stopped_until or not self._are_applied():
            return True
        self._stopped_until = None
        return False
