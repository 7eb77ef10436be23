"""The loop of a request function over many elements.

1. Each element takes its cost off the context's `elements_left`; others are served when none is
   left.

A module of its own: mypyc compiles no asynchronous generator. Not here: whose turn is next
(`turns.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

E = TypeVar("E")


async def each(context: RequestContext, elements: Iterable[E], cost: int) -> AsyncIterator[E]:
    for element in elements:
        if context.turn_is_over(cost):
            await context.next_turn()
        yield element
