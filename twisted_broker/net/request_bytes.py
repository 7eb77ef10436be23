"""How many bytes of long requests are in memory at a time, over all connections of a listener's
broker.

Owns `RequestBytes`: what was granted, and who waits for room.

1. A frame that does not come in one piece is granted as a whole before it is read on, as long as
   less than the limit is granted: at most one frame is above it. Whoever was granted one can finish
   it, so nobody waits for himself.
2. Short frames are never held back: heartbeats, fetches of followers and what completes a waiting
   produce come through.
3. Who waits is woken in the order of coming.

Source: Kafka's `SimpleMemoryPool` (`queued.max.request.bytes`). Not here: who is closed for being
slow (`accept.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestBytes:
    """`limit` in bytes; 0 or less: none."""

    __slots__ = ("limit", "used", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Grants `size` bytes; else `wake` is called once, when it is worth asking again."""
        if 0 < self.limit <= self.used:
            self.waiting.append(wake)
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
        while self.waiting and not 0 < self.limit <= self.used:
            self.waiting.popleft()()
