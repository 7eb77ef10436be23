"""TCP relays between everything of a cluster: each way between two of them can be cut, slowed down,
or have its connections dropped.

Owns `Relays`: fronts (listening ports that stand for a node), and the ways from one name to another
(`relay_link.py`).

1. Who calls is read from the client id of the first request: `broker-N-...` and `raft-client-N` are
   node N, everything else is `clients`. So the way a connection takes is known whoever shares its
   port. What begins a TLS connection cannot be read: there the process counts that the calling
   socket is of (`caller_of`, by `Relays.pids`).
2. A front on 127.0.0.1:P stands for a node on 127.0.0.2:P. Holding the one port keeps the other
   free for the node, over its restarts.

All runs in one thread of its own; methods may be called from any thread. Linux (127.0.0.2 needs no
set-up there).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from tests.faults.relay_link import Pump, RelayLink, reset

FRONT, BEHIND = "127.0.0.1", "127.0.0.2"
CLIENTS = "clients"
_NODE = re.compile(rb"(?:broker|raft-client)-(\d+)")
_CLIENT_ID_AT = 4 + 2 + 2 + 4 + 2
# A request begins with its length: that byte would be one of 300 MB or more.
_TLS_HANDSHAKE = 0x16


class Near(asyncio.Protocol):
    """The caller's side of a connection."""

    def __init__(self, relays: Relays, target: str, address: tuple[str, int]) -> None:
        self.relays, self.target, self.address = relays, target, address
        self.there: Pump | None = None
        self.far: Far | None = None
        self._begin = b""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        if self.there is not None:
            self.there.feed(data)
            return
        self._begin += data
        if self._begin[0] == _TLS_HANDSHAKE:
            source = caller_of(
                self.transport.get_extra_info("peername")[1],
                self.transport.get_extra_info("sockname")[1],
                self.relays.pids(),
            )
        else:
            source = caller(self._begin)
        if source:
            self.there = Pump(
                self.relays.find(source, self.target), self.transport, self.relays.loop
            )
            self.back_way = self.relays.find(self.target, source)
            self.there.feed(self._begin)
            self.relays.dial(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.there is not None:
            self.there.end()


class Far(asyncio.Protocol):
    """The node's side of a connection."""

    def __init__(self, near: Near) -> None:
        self.near = near

    def connection_made(self, transport: Any) -> None:
        assert self.near.there is not None
        self.transport: asyncio.Transport = transport
        self.near.far = self
        self.back = Pump(self.near.back_way, transport, self.near.relays.loop)
        self.back.sink = self.near.transport
        self.near.there.sink = transport
        self.near.there.go_on()

    def data_received(self, data: bytes) -> None:
        self.back.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.back.end()


def caller(begin: bytes) -> str:
    """Who sent these first bytes of a connection: a node's number, or `clients`; "" when more
    must come first.
    """
    if len(begin) < _CLIENT_ID_AT:
        return ""
    size = int.from_bytes(begin[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT], "big", signed=True)
    if len(begin) < _CLIENT_ID_AT + size:
        return ""
    node = _NODE.match(begin[_CLIENT_ID_AT : _CLIENT_ID_AT + max(size, 0)])
    return node[1].decode() if node else CLIENTS


def caller_of(port: int, front: int, pids: Mapping[str, int]) -> str:
    """Whose socket it is that is connected from that port of FRONT to the other one: the node of
    one of these processes, or `clients`.
    """
    ends = [f"0100007F:{each:04X}" for each in (port, front)]
    inode = ""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == ends:
            inode = words[9]
    for name, pid in pids.items() if inode not in ("", "0") else ():
        with suppress(OSError):  # the process has ended, or a file of it was closed meanwhile
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(each) == f"socket:[{inode}]":
                        return name
    return CLIENTS


class Relays:
    """Use as a context; on leaving all connections end.

    Names are node ids as text, and `clients`. `pids`: of the nodes that run, by name; needed with
    TLS.
    """

    def __init__(self) -> None:
        self.pids: Callable[[], Mapping[str, int]] = dict
        self.loop = asyncio.new_event_loop()
        self._ways: dict[tuple[str, str], RelayLink] = {}
        self._thread = Thread(target=self.loop.run_forever, name="relays", daemon=True)
        self._dialling: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Relays:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.heal()
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._dialling):
            task.cancel()
        while any(way.pumps for way in self._ways.values()):
            for way in self._ways.values():
                for pump in list(way.pumps):
                    pump.source.abort()
                    pump.forget()
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def front(self, target: str) -> int:
        """Opens a front for the node; gives its port, on which the node is to listen at
        `BEHIND`.
        """

        async def listen() -> int:
            found = 0
            server = await self.loop.create_server(
                lambda: Near(self, target, (BEHIND, found)), FRONT, 0
            )
            self._servers.append(server)
            found = server.sockets[0].getsockname()[1]
            return found

        return asyncio.run_coroutine_threadsafe(listen(), self.loop).result()

    def cut(self, *ways: tuple[str, str]) -> None:
        """Nothing gets from the one to the other any more."""
        self._change(ways, lambda way: setattr(way, "is_cut", True))

    def slow(self, seconds: float, *ways: tuple[str, str]) -> None:
        """Everything takes that much longer."""
        self._change(ways, lambda way: setattr(way, "delay", seconds))

    def heal(self) -> None:
        """All ways are open and fast; what waited goes on."""

        def mend(way: RelayLink) -> None:
            way.is_cut, way.delay = False, 0.0

        self._change(None, mend)

    def drop(self, name: str) -> int:
        """All connections of `name` break, without a word; gives how many."""

        def abort() -> int:
            pumps = [pump for ends, way in self._ways.items() if name in ends for pump in way.pumps]
            for pump in pumps:
                reset(pump.source)
            return len(pumps)

        return self._call(abort)

    def used(self) -> set[tuple[str, str]]:
        """The ways that carry connections now."""
        found: set[tuple[str, str]] = self._call(
            lambda: {ends for ends, way in self._ways.items() if way.pumps}
        )
        return found

    def find(self, source: str, target: str) -> RelayLink:
        """The way from `source` to `target`."""
        return self._ways.setdefault((source, target), RelayLink())

    async def _connect(self, near: Near, there: Pump) -> None:
        """One that does not answer is a connection lost."""
        await there.way.open()
        try:
            await self.loop.create_connection(lambda: Far(near), *near.address)
        except OSError:
            await near.back_way.open()
            there.forget()
            reset(near.transport)

    def dial(self, near: Near) -> None:
        """Connects to the node as soon as its way is open."""
        assert near.there is not None

        task = self.loop.create_task(self._connect(near, near.there))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _change(
        self, ways: tuple[tuple[str, str], ...] | None, change: Callable[[RelayLink], None]
    ) -> None:
        def all_of_them() -> None:
            for way in [self.find(*ends) for ends in (self._ways if ways is None else ways)]:
                change(way)
                way.changed()

        self._call(all_of_them)

    def _call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()
