"""The events that the seeds of clusters in ZooKeeper mode must reach.

Owns `ZOOKEEPER_WANTED`, the table, and `ZooKeeperReach`; `ZooKeeperProbes`, which look where only
these clusters come.

Not here: counting (`simulation/reach.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_broker.simulation.probes import Probes
from twisted_broker.simulation.reach import DARK, KINDS, Reach
from twisted_broker.simulation.zookeeper.faults import ZOOKEEPER_FAULTS
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.forwarding import ZnodeProducerIds
from twisted_broker.zookeeper.isr_state_writes import IsrStateWrites
from twisted_broker.zookeeper.membership import Membership

_OWN = {
    "controller elected": "also after another one",
    "stale controller refused": "a broker had heard a later one",
    "stale broker epoch refused": "what was meant for a broker before its new session",
    "stale role refused": "a leader epoch that a broker had already",
    "broker gone": "its node went",
    "broker bounced": "it was registered again before the controller looked",
    "session timed out": "of a broker, or a controller",
    "registered again": "under a new broker epoch, in the same process",
    "answer of ZooKeeper lost": "the write was done",
    "watch came late": "behind other answers",
    "ISR written": "in a partition's state, by its leader",
    "ISR write found done": "its answer was lost",
    "ISR write lost a race": "the controller had written since",
    "ISR change announced": "to the controller",
    "producer ids from ZooKeeper": "a block, by a conditional write",
    "preferred leader elected": "by the controller",
    "replica deleted by StopReplica": "and said so",
}
_RARE = {"controller lost a race for a state": "a leader wrote it between its reading and writing"}
"""Counted, and seldom there."""
_OF_ALL = (
    "recovery",
    "recovery dropped a tail",
    "clean start",
    "duplicate",
    "roll by size",
    "log start moved",
    "truncation by epoch",
    "fetch fenced",
    "fetch diverged",
    "fetch stale",
    "fetch refused",
    "ISR shrink",
    "ISR expansion",
    "ISR change refused",
    "leader change",
    "no leader",
    "unclean election",
    "high watermark checkpoint read",
    "controlled shutdown",
    "setting changed",
    "topic deleted",
    "topic made again",
    "replica deleted",
    "reassignment begun",
    "reassignment ended",
)
ZOOKEEPER_WANTED: dict[str, str] = (
    {kind: KINDS[kind] for kind in _OF_ALL}
    | _OWN
    | {f"fault: {name}": "it struck" for name in ZOOKEEPER_FAULTS}
)
"""Kind -> what it is."""


class ZooKeeperReach(Reach):
    """The counts of one run."""

    def count(self, kind: str, times: int = 1) -> None:
        assert kind in KINDS or kind in DARK or kind in _OWN or kind in _RARE, kind
        self.counts[kind] += times


class ZooKeeperProbes(Probes):
    """The usual ones, and these."""

    def _watch_cluster(self) -> None:
        super()._watch_cluster()
        self._after(ClusterState, "_role_error", self._role)
        self._after(Membership, "_register_again", lambda *_: self._count("registered again"))
        self._after(
            ZnodeProducerIds, "_try_block", lambda *_: self._count("producer ids from ZooKeeper")
        )
        self._wrap(IsrStateWrites, "_done_before", self._looking)
        self._wrap(IsrStateWrites, "_write_once", self._writing)

    def _role(self, error: ErrorCode, *_: object) -> None:
        self._count("stale role refused", int(error is ErrorCode.STALE_CONTROLLER_EPOCH))

    def _looking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*arguments: Any) -> Any:
            version = await function(*arguments)
            lost = version is None
            self._count("ISR write lost a race" if lost else "ISR write found done")
            return version

        return watched

    def _writing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*arguments: Any) -> Any:
            answer = await function(*arguments)
            self._count("ISR written", int(answer.error is ErrorCode.NONE))
            return answer

        return watched
