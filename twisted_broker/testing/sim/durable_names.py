"""The names on a simulated disk as a loss of power would leave them.

Owns `DurableNames`. A created, renamed or removed name is durable only after its directory was
synced; of those that are not, a crash keeps, in each directory, a prefix of the changes in their
order. A directory that was renamed away and made anew is two: names of the new one never come into
the old one.

Source: ALICE (OSDI '14); RELIABILITY 6.2. Not here: what the files hold (`testing/sim/file.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from random import Random

from twisted_broker.log.memory import Inode, directory_of
from twisted_broker.testing.sim.file import SimInode


class DurableNames:
    """`files`: path -> content; `directories`. Both as of the last sync of each directory."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self._pending: list[tuple[str, Callable[[], object], str]] = []
        """(directory, change, the directory that it takes away or "") in the order of happening"""

    # changes

    def created(self, path: str, node: Inode) -> None:
        self._later(path, lambda: self.files.__setitem__(path, node))

    def removed(self, path: str) -> None:
        self._later(path, lambda: self.files.pop(path, None))

    def directory_added(self, path: str) -> None:
        self._later(path, lambda: self.directories.add(path))

    def directory_removed(self, path: str) -> None:
        self._later(path, lambda: self.directories.discard(path))

    def renamed(self, source: str, target: str, is_directory: bool) -> None:
        rename = self._rename_directory if is_directory else self._rename_file
        self._later(target, lambda: rename(source, target), source if is_directory else "")

    def _later(self, path: str, change: Callable[[], object], taken_away: str = "") -> None:
        self._pending.append((directory_of(path), change, taken_away))

    def _rename_file(self, source: str, target: str) -> None:
        node = self.files.pop(source, None)
        self.files[target] = node if node is not None else SimInode()

    def _rename_directory(self, source: str, target: str) -> None:
        for name in [name for name in self.files if name.startswith(source + "/")]:
            self.files[target + name[len(source) :]] = self.files.pop(name)
        for name in [
            name for name in self.directories if name == source or name.startswith(source + "/")
        ]:
            self.directories.discard(name)
            self.directories.add(target + name[len(source) :])

    # what becomes of them

    def sync(self, directory: str) -> None:
        """All changes in this directory are durable, and if another one had its name before, that
        one is away.
        """
        last = max(
            (row for row, (_, _, away) in enumerate(self._pending) if away == directory), default=-1
        )
        parent = posixpath.dirname(directory)
        left = []
        for row, (where, change, away) in enumerate(self._pending):
            if where == directory or (where == parent and row <= last):
                change()
            else:
                left.append((where, change, away))
        self._pending = left

    def forget(self, directory: str) -> None:
        """What is in it, and the directory, are gone for good."""
        inside = directory + "/"
        self.files = {
            path: node for path, node in self.files.items() if not path.startswith(inside)
        }
        self.directories = {
            path for path in self.directories if path != directory and not path.startswith(inside)
        }
        self._pending = [
            each
            for each in self._pending
            if each[0] != directory and not each[0].startswith(inside) and each[2] != directory
        ]

    def put(self, path: str, node: Inode) -> None:
        """A file, and the directories that it is in, are there for good."""
        self.files[path] = node
        while path != "/":
            path = posixpath.dirname(path)
            self.directories.add(path)

    def sync_all(self, files: Mapping[str, Inode], directories: set[str]) -> None:
        """These are the names, durably."""
        self.files, self.directories = dict(files), set(directories)
        self._pending.clear()

    def lose_power(self, random: Random, keep: float) -> None:
        """Each change after those that were kept in its directory is kept with the chance
        `keep`; the first that is not ends them.
        """
        ended: set[str] = set()
        for directory, change, away in self._pending:
            # Journals order the changes of one directory; across directories any order survives.
            if directory in ended or random.random() >= keep:
                ended.add(directory)
                if away:  # what came into a new directory of this name is in none
                    ended.add(away)
            else:
                change()
        self._pending.clear()

    def reachable(self) -> set[str]:
        """The directories whose parents are there, too."""
        return {path for path in self.directories if self._is_reachable(path)}

    def _is_reachable(self, directory: str) -> bool:
        return directory in self.directories and (
            directory == "/" or self._is_reachable(posixpath.dirname(directory))
        )
