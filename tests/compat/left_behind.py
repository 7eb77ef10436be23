"""A broker in the reactor of its program, started twice: no descriptor, timer or thread stays."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

Connect = Callable[[str, int], Awaitable[Callable[[], object]]]
"""A connection's `close`"""


async def used_and_stopped(
    reactor: Callable[[], Any], connect: Connect, data: Path, timers: Sequence[Any] = ()
) -> None:
    """`reactor`: the one that is there once a broker is; `timers`: those of the program.
    Connections stay open, starts are refused.
    """
    from twisted_broker import Broker, StartError

    threads, connections = threading.enumerate(), []
    for _ in range(2):
        async with Broker(data=str(data)) as broker:
            for address in (broker.bootstrap, broker.status):
                assert address is not None
                host, _, port = address.rpartition(":")
                connections.append(await connect(host, int(port)))
            for another, why in (
                (Broker(port=int(broker.bootstrap.rpartition(":")[2])), "cannot be listened on"),
                (Broker(data=str(data)), "in use"),
            ):
                try:
                    await another.start()
                except StartError as error:
                    assert why in str(error), error
                else:
                    raise AssertionError(f"it started: {why}")
    for close in connections:
        close()
    world = reactor()
    left = [each for each in world.getReaders() if "Waker" not in repr(each)]
    left += world.getWriters()
    left += [each for each in world.getDelayedCalls() if each not in timers]
    assert left == []
    assert threading.enumerate() == threads, threading.enumerate()
