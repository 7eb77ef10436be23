"""Clusters of tests that are over, for those that want one of the same kind.

Owns `Pool`.

1. A cluster is handed on as it was before its first test: a snapshot of that moment is restored,
   with nothing of the test in it: no topic, group, transaction, fault, time, snapshot or id.
2. It is not where a client of that test could come to the next one: one that has not closed its
   connections, or that may be waiting for what the test struck. Then a new one is made.
3. What a test holds of its cluster is closed for it, as if the cluster had ended.
4. Bounded: the last `MOST` kinds wait for another test; a log of `MOST_LOGGED` bytes is not added
   to. Clusters that tests share last until the end of the run: one of each kind.

Source: our own. Not here: which test wants what (`pytest_plugin.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from twisted_broker.testing.cluster import Cluster, start_arguments
from twisted_broker.testing.handles import Snapshot
from twisted_broker.testing.template_client import ClusterError

MOST = 4
MOST_LOGGED = 8 << 20


class _Left(NamedTuple):
    cluster: Cluster
    first: Snapshot[None]


def kind_of(wanted: Mapping[str, Any]) -> str:
    """Two that want the same have the same. Raises TypeError."""
    given = {"brokers": 1, "settings": None, "topics": None, **wanted}
    return json.dumps(start_arguments(**given, data=None), sort_keys=True)


class Pool:
    """`kinds`: of all tests that are going to ask."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._expected = Counter(kinds)
        self._first: dict[Cluster, Snapshot[None]] = {}
        self._left: dict[str, _Left] = {}
        self._shared: dict[str, Cluster] = {}

    def shared(self, wanted: Mapping[str, Any]) -> Cluster:
        """The one of that kind that all who ask for it have. Raises ClusterError, TypeError."""
        kind = kind_of(wanted)
        if kind not in self._shared:
            self._shared[kind] = Cluster(**wanted)
        return self._shared[kind]

    def take(self, wanted: Mapping[str, Any]) -> Cluster:
        """One that nobody else has. Raises ClusterError, TypeError."""
        kind = kind_of(wanted)
        self._expected[kind] -= 1
        left = self._left.pop(kind, None)
        if left is not None:
            again = left.cluster.handed_on(left.first)
            if again is not None:
                self._first[again] = left.first
                return again
            left.cluster.close()
        made = Cluster(**wanted)
        if self._expected[kind] > 0:
            try:
                self._first[made] = made.snapshot()
            except ClusterError:  # by its settings, or this system, there can be none
                self._expected[kind] = 0
        return made

    def give_back(self, cluster: Cluster, wanted: Mapping[str, Any]) -> None:
        """Its test is over."""
        kind, first = kind_of(wanted), self._first.pop(cluster, None)
        if first is None or self._expected[kind] <= 0 or cluster.log_size > MOST_LOGGED:
            cluster.close()
            return
        self._left[kind] = _Left(cluster, first)
        while len(self._left) > MOST:
            self._left.pop(next(iter(self._left))).cluster.close()

    def close(self) -> None:
        """Ends those that are left."""
        for each in self._left.values():
            each.cluster.close()
        for cluster in self._shared.values():
            cluster.close()
        self._left.clear()
        self._shared.clear()
