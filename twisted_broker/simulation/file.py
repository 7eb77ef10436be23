"""A simulated file: which of its bytes were synced, and what a loss of power would leave.

Owns `SimInode`, its content, and `SimFile`, an open file.

1. A process always sees what it wrote; what a crash leaves is drawn when it happens.
2. Unsynced writes survive a crash one by one, in any subset; the newest one kept may be torn at any
   sector boundary (or byte).
3. A truncation that is lost leaves the old bytes in their blocks, which a journal gives to nobody
   before it is durable: of what was written later only the first writes survive, in order.

Source: ALICE (OSDI '14); RELIABILITY 6.2. Not here: names (`simulation/durable_names.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from twisted_broker.interfaces import Buffer
from twisted_broker.log.memory import Inode, MemoryFile

_SECTOR_BYTES, _BLOCK_BYTES = 512, 4096
_Write = tuple[int, bytes | None]
"""(position, bytes), or (size, None) for a truncation"""


class SimInode(Inode):
    """`durable` is the content as of the last sync; `pending` what came since; `evicted` the blocks
    that a read must wait for.
    """

    __slots__ = ("durable", "evicted", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.durable = b""
        self.pending: list[_Write] = []
        self.evicted: set[int] = set()

    def content(self) -> bytes:
        """All that was written, the hole behind it as zeros."""
        return bytes(self.data) + bytes(self.length - len(self.data))

    def sync(self) -> None:
        self.durable = self.content()
        self.pending.clear()

    def after_power_loss(self, random: Random, keep: float, torn_at_byte: bool) -> bytes:
        """What is left. `keep`: the chance of each unsynced write."""
        content = bytearray(self.durable)
        kept = self._kept(random, keep)
        for number, (position, data) in enumerate(kept):
            if data is None:
                del content[position:]
                content.extend(bytes(position - len(content)))
                continue
            # Earlier writes had time to reach the platter whole; only the newest can be torn.
            if number == len(kept) - 1:
                data = _torn(random, position, data, torn_at_byte)
            content.extend(bytes(max(0, position - len(content))))
            content[position : position + len(data)] = data
        return bytes(content)

    def _kept(self, random: Random, keep: float) -> list[_Write]:
        """Any subset; but behind a truncation that is lost only the first writes, in order."""
        kept: list[_Write] = []
        truncation_lost = False
        for position, data in self.pending:
            if random.random() < keep:
                kept.append((position, data))
            elif truncation_lost:
                break
            else:
                truncation_lost = data is None
        return kept


def blocks(position: int, length: int) -> range:
    """The blocks of the page cache in which these bytes lie."""
    return range(position // _BLOCK_BYTES, (position + max(length, 1) - 1) // _BLOCK_BYTES + 1)


def _torn(random: Random, position: int, data: bytes, at_byte: bool) -> bytes:
    """A prefix of a write, ending at a sector boundary of the file (or anywhere)."""
    end = random.randint(0, len(data))
    if not at_byte and end < len(data):
        end = max(0, (position + end) // _SECTOR_BYTES * _SECTOR_BYTES - position)
    return data[:end]


class _Disk(Protocol):
    """What a file needs of its disk (`SimDisk`)."""

    def fault(self, operation: str, path: str) -> None: ...
    def step(
        self, operation: str, path: str, torn: Callable[[float], None] | None = None
    ) -> None: ...
    def room_for(self, growth: int) -> int: ...
    def read(self, path: str, node: SimInode, position: int, length: int) -> None: ...
    def written(self, path: str, node: SimInode, position: int, length: int) -> None: ...


class SimFile(MemoryFile):
    """An open file of a `SimDisk`."""

    node: SimInode

    def __init__(self, disk: _Disk, path: str, node: SimInode, read_only: bool) -> None:
        super().__init__(path, node, read_only)
        self._disk = disk

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.fault("read", self.path)
        self._disk.read(self.path, self.node, position, length)
        return super().read_at(position, length)

    def is_resident(self, position: int, length: int) -> bool:
        evicted = self.node.evicted
        return not evicted or evicted.isdisjoint(blocks(position, length))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        content = b"".join(buffers)
        growth = max(0, position + len(content) - self.node.length)
        room = self._disk.room_for(growth)
        if room < min(len(content), growth):
            super().write_at(position, (content[:room],))
            self.node.pending.append((position, content[:room]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._disk.step("write", self.path, lambda part: self._interrupted(position, content, part))
        self.node.pending.append((position, content))
        self._disk.written(self.path, self.node, position, len(content))
        return super().write_at(position, (content,))

    def _interrupted(self, position: int, content: bytes, part: float) -> None:
        self.node.pending.append((position, content[: int(len(content) * part)]))

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self.path)
        self.node.pending.append((size, None))
        super().truncate(size)

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        super().sync()
        self.node.sync()
