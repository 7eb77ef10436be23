"""The world of a consumer in a Twisted program: the program's reactor, its sockets and its clock.

Owns `reactor_runtime`. Ring 2: it names the reactor. Not here: a broker's runtime (`tap`).
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from twisted_broker.interfaces import Runtime
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.net.network import ReactorNetwork


def reactor_runtime(reactor: Any = None) -> Runtime:
    """Of `reactor`, None: the installed one. A consumer stores nothing: its files are in memory."""
    if reactor is None:
        from twisted.internet import reactor as installed

        reactor = installed
    return Runtime(
        clock=reactor,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        network=ReactorNetwork(reactor),
        files=MemoryFileSystem(),
        disk=lambda directory: InlineWorker(),
        random=Random(),
        key_files=OsFileSystem(),
    )
