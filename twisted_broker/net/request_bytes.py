"""The bytes of long requests in memory at a time, over all connections of a broker.

Owns `RequestBytes`: what is allocated, and who waits for room.

1. A frame that does not come in one piece is allocated as a whole before more of it is read, while
   less than the limit is allocated: at most one frame exceeds it. An allocated frame can always be
   read to its end, so no frame waits for itself.
2. Short frames never wait: heartbeats, follower fetches, and what completes a waiting produce.
3. Waiters are called in the order in which they came. A connection that ends meanwhile is
   forgotten: its waiter would keep it, and all that it has read, in memory.
4. Connections that have yet to authenticate take nothing of this: their long frames, each bounded
   by `sasl.server.max.receive.size`, have `STRANGERS_LIMIT` together. What exceeds that is refused,
   since nobody's login is so long.

Source: Kafka's `SimpleMemoryPool` (`queued.max.request.bytes`). Not here: closing slow connections
(`net/connection_limits.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

STRANGERS_LIMIT = 32 << 20


class RequestBytes:
    """`limit` in bytes; 0 or less: none. `of_strangers`: bytes of those that have yet to
    authenticate.
    """

    __slots__ = ("limit", "of_strangers", "used", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.of_strangers = 0
        self.waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int, wake: Callable[[], None]) -> bool:
        """Grants `size` bytes; else `wake` is called once, when it is worth trying again."""
        if 0 < self.limit <= self.used:
            self.waiting.append(wake)
            return False
        self.used += size
        return True

    def take_for_stranger(self, size: int) -> bool:
        """Whether there is room for `size` bytes of a client that has yet to authenticate; it
        gives them back by subtracting them from `of_strangers`.
        """
        if self.of_strangers + size > STRANGERS_LIMIT:
            return False
        self.of_strangers += size
        return True

    def forget(self, wake: Callable[[], None]) -> None:
        """Calls it no more."""
        if wake in self.waiting:
            self.waiting.remove(wake)

    def release(self, size: int) -> None:
        self.used -= size
        # One at a time: each may take what the release has freed.
        while self.waiting and not 0 < self.limit <= self.used:
            self.waiting.popleft()()
