"""Invariants of several controllers that keep the metadata.

Owns `QuorumChecker` and `QuorumState`.

1. What is committed is one: an image that any controller has committed is the truth at its offset,
   for all, for ever. The one that got furthest says how far that is; the others follow, at their
   own pace, and none goes back within a process.
2. Between two committed images of a standby lie those that a leader decided there, where its epoch
   is the log's: an election is judged by what was before it.
3. One controller at most is active in an epoch.
4. No broker is fenced for silence within a session of a claim: a new controller has not heard yet.

Source: QU 7.4. Not here: the rules about what is committed (`checks/committed_state.py`), votes and
logs (the simulation of `raft`, in the tests).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted_broker.cluster.controller import Controller
from twisted_broker.image.entries import BrokerRegistration
from twisted_broker.simulation.checks.cluster import ClusterChecker
from twisted_broker.simulation.checks.committed_state import CommittedState, Violation
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.node import SimNode

_REMEMBERED = 2_000
"""Images, to which those of standbys that come later are compared."""


class QuorumState(CommittedState):
    """See the module's card, 1 and 2."""

    def __init__(self, note: Any) -> None:
        super().__init__(note)
        self._proposed: dict[tuple[int, int], Any] = {}
        self._history: dict[int, Any] = {}
        self._last: dict[int, Any] = {}
        self._high_watermark = 0

    @property
    def _committed_upto(self) -> int:
        """A controller shows whole decisions, brokers each batch of one."""
        return self._high_watermark - 1

    def decided(self, controller: object, images: Iterable[Any]) -> None:
        for image in images:
            self._proposed.setdefault((image.offset, image.epoch), image)

    def look_at(self, who: str, controller: Controller) -> None:
        """Raises `Violation`."""
        self._high_watermark = max(self._high_watermark, controller.log.high_watermark)
        image = controller.committed
        last = self._last.get(id(controller))
        if image is last or image.offset < 0:
            return
        if last is not None and image.offset < last.offset:
            raise Violation(
                f"{who}'s controller went back from {last.offset} to {image.offset}, both committed"
            )
        self._last[id(controller)] = image
        known = -1 if self.image is None else self.image.offset
        if image.offset <= known:
            there = self._history.get(image.offset)
            if there is not None and there != image:
                raise Violation(f"{who}'s metadata up to {image.offset} is another one")
            return
        epochs = controller.log.log.leader_epochs
        for offset, epoch in sorted(self._proposed):
            if known < offset < image.offset and epochs.epoch_for_offset(offset) == epoch:
                self._note_committed(self._proposed[offset, epoch])
        self._note_committed(image)
        self._proposed = {at: each for at, each in self._proposed.items() if at[0] > image.offset}

    def _note_committed(self, image: Any) -> None:
        self._look(image)
        self._history[image.offset] = image
        if len(self._history) > _REMEMBERED:
            del self._history[next(iter(self._history))]

    def forget(self, controller: Controller) -> None:
        """Its process ended."""
        self._last.pop(id(controller), None)


class QuorumChecker(ClusterChecker):
    """See the module's card."""

    truth: QuorumState

    def __init__(self, cluster: Any, session_ms: int) -> None:
        super().__init__(cluster)
        self._session = session_ms / 1000
        self._active: dict[int, str] = {}
        self._claimed: dict[int, float] = {}
        self._dead: list[tuple[str, Controller]] = []

    def make_truth(self) -> QuorumState:
        return QuorumState(lambda what: self.cluster.note("checker", what))

    def step(self, clock: NodeClock) -> None:
        while self._dead:
            who, controller = self._dead.pop()
            self.truth.look_at(who, controller)
            self.truth.forget(controller)
        super().step(clock)

    def gone(self, node: SimNode) -> None:
        controller = None if node.broker is None else node.broker.parts.controller
        if controller is not None:
            self._dead.append((node.name, controller))
        self.members.gone(node)

    def _look_at_metadata(self, node: SimNode) -> None:
        assert node.broker is not None
        parts = node.broker.parts
        if parts.controller is not None:
            controller = parts.controller
            if controller.is_active:
                self._check_active(node, controller)
            self.truth.look_at(node.name, controller)
        if parts.metadata is not None:
            self.truth.applied(node.name, parts.metadata.image)

    def _check_active(self, node: SimNode, controller: Controller) -> None:
        self.truth.decided(controller, controller.uncommitted)
        first = self._active.setdefault(controller.epoch, node.name)
        if first != node.name:
            raise Violation(f"{first} and {node.name} are both active in epoch {controller.epoch}")
        self._claimed.setdefault(controller.epoch, self.cluster.sim.now)

    def session_lapsed(self, controller: Controller, broker: BrokerRegistration) -> None:
        """Says its controller, which is about to fence it."""
        now = self.cluster.sim.now
        claimed = self._claimed.get(controller.epoch, now)
        if now < claimed + self._session:
            self.broken = (
                f"broker {broker.id} has no session any more {now - claimed:.1f} s after the claim "
                f"of epoch {controller.epoch}"
            )
