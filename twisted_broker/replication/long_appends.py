"""Long batches before their append, and who waits for it.

Owns `write_ahead`, which has a batch checked and written (`log/write_ahead.py`) while others are
served, and `LongAppends`, one for a broker: which partitions' next append is being written so. A
client's append waits meanwhile, as it does for the lock of the log in Apache Kafka. What else is
appended (markers, the coordinators' records, what a leader sent) waits for nobody: it ends what was
written ahead, and the long batch is then written as a whole.

Bounded by the requests under way. A restart forgets it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import Buffer, TopicPartition

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.log.write_ahead import WriteAhead


async def write_ahead(
    log: Log,
    records: Buffer,
    wall_ms: int,
    next_turn: Callable[[], Awaitable[None]],
    *,
    is_clients: bool = False,
) -> WriteAhead | None:
    """What the log's `end_ahead` takes after the append, and after its refusal; None: nothing was
    done, the append does all.
    """
    ahead = log.begin_ahead(records)
    if ahead is None:
        return None
    try:
        if is_clients:
            checked: Deferred[None] = Deferred(lambda _: None)
            log.check_ahead(ahead, wall_ms, partial(fire, checked))
            await checked
        for _ in log.write_ahead(ahead, wall_ms):
            await next_turn()
    except BaseException:
        log.end_ahead(ahead)
        raise
    return ahead


class LongAppends:
    """`held`: the partitions, each with those that wait for it."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[TopicPartition, list[Deferred[None]]] = {}

    async def begin(self, names: Sequence[TopicPartition]) -> None:
        """Holds all of them, once none is held: nobody holds one while it waits for another."""
        while (taken := next((each for each in names if each in self.held), None)) is not None:
            waiter: Deferred[None] = Deferred()
            self.held[taken].append(waiter)
            await waiter
        for each in names:
            self.held.setdefault(each, [])

    def end(self, names: Sequence[TopicPartition]) -> None:
        for each in names:
            for waiter in self.held.pop(each, ()):
                fire(waiter)


def fire(waiter: Deferred[None]) -> None:
    """Unless it was cancelled meanwhile."""
    if not waiter.called:
        waiter.callback(None)
