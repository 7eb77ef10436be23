"""The requests that are under way: one for each node at a time, and one fetch over all nodes.

1. After a change of state none of them is expected any more: a late answer finds no request.
2. A request without an answer ends nothing: its node is free again, and the late answer is dropped.
3. A node that failed rests for a moment.

Source: Kafka's `RequestManager`; QU 2.34, 2.35, 9.24. Bounded by the nodes that there are.
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.raft.consequences import Outbox, Send
from twisted_broker.raft.messages import Fetch, FetchSnapshot, Request
from twisted_broker.raft.replica_key import Address
from twisted_broker.raft.states import NEVER


class _UnderWay(NamedTuple):
    correlation: int
    node: int
    request: Request
    deadline_ms: float


class RequestManager:
    """Sends through the outbox."""

    def __init__(self, out: Outbox, timeout_ms: float, backoff_ms: float) -> None:
        self._out, self._timeout_ms, self._backoff_ms = out, timeout_ms, backoff_ms
        self._correlation = 0
        self._under_way: dict[int, _UnderWay] = {}
        self._rest_until_ms: dict[int, float] = {}

    def is_ready(self, node: int, now_ms: float) -> bool:
        found = self._under_way.get(node)
        is_free = found is None or now_ms >= found.deadline_ms
        return is_free and not self.is_backing_off(node, now_ms)

    def give_up(self, node: int, now_ms: float) -> None:
        """What waits too long is expected no more, and the node rests."""
        found = self._under_way.get(node)
        if found is not None and now_ms >= found.deadline_ms:
            del self._under_way[node]
            self.failed(node, now_ms)

    def is_backing_off(self, node: int, now_ms: float) -> bool:
        return now_ms < self._rest_until_ms.get(node, 0)

    def is_fetching(self, now_ms: float) -> bool:
        return any(
            isinstance(each.request, Fetch | FetchSnapshot) and now_ms < each.deadline_ms
            for each in self._under_way.values()
        )

    def send(
        self, node: int, address: Address, request: Request, now_ms: float, timeout_ms: float = 0
    ) -> None:
        self._correlation += 1
        deadline = now_ms + (timeout_ms or self._timeout_ms)
        self._under_way[node] = _UnderWay(self._correlation, node, request, deadline)
        after = self._out.state_seq
        if isinstance(request, Fetch):
            after = max(after, self._out.log_seq)  # it acknowledges what it names
        self._out.add(Send(node, address, self._correlation, request, after))

    def take(self, correlation: int) -> tuple[int, Request] | None:
        """The node and the request of an answer; None when it is not expected any more."""
        for found in self._under_way.values():
            if found.correlation == correlation:
                del self._under_way[found.node]
                return found.node, found.request
        return None

    def failed(self, node: int, now_ms: float) -> None:
        self._rest_until_ms[node] = now_ms + self._backoff_ms

    def reset(self) -> None:
        self._under_way.clear()
        self._rest_until_ms.clear()

    def wake_ms(self, now_ms: float) -> float:
        """When another node may be ready."""
        times = [each.deadline_ms for each in self._under_way.values()]
        times += self._rest_until_ms.values()
        return min((each for each in times if each > now_ms), default=NEVER)
