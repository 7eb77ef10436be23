"""The names on a simulated disk as a loss of power would leave them.

Owns `DurableNames`. A created, renamed or removed name is durable only after its directory was
synced; of those that are not, a crash keeps, in each directory, a prefix of the changes in their
order. A directory that was renamed away and made anew is two: names of the one never come into the
other.

Source: ALICE (OSDI '14); RELIABILITY 6.2. Not here: what the files hold (`simulation/file.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import NamedTuple

from twisted_broker.log.memory import Inode, directory_of
from twisted_broker.simulation.file import SimInode


class _Change(NamedTuple):
    """In `directory`, to these paths; `taken_away`: the directory that it renames, or ""."""

    directory: str
    call: Callable[..., object]
    paths: tuple[str, ...]
    taken_away: str

    def make(self) -> None:
        self.call(*self.paths)

    def within(self, source: str, target: str) -> _Change:
        """The same change when the directory `source` is called `target`."""
        if not f"{self.directory}/".startswith(f"{source}/"):
            return self
        end = len(source)
        return self._replace(
            directory=target + self.directory[end:],
            paths=tuple(target + path[end:] for path in self.paths),
        )


class DurableNames:
    """`files`: path -> content; `directories`. Both as of the last sync of each directory."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self._pending: list[_Change] = []
        """in the order of happening"""

    # changes

    def created(self, path: str, node: Inode) -> None:
        self._later(partial(self._create_file, node), path)

    def removed(self, path: str) -> None:
        self._later(self._remove_file, path)

    def directory_added(self, path: str) -> None:
        self._later(self._add_directory, path)

    def directory_removed(self, path: str) -> None:
        self._later(self._discard_directory, path)

    def renamed(self, source: str, target: str, is_directory: bool) -> None:
        rename = self._rename_directory if is_directory else self._rename_file
        self._later(rename, source, target, taken_away=source if is_directory else "")

    def _later(self, call: Callable[..., object], *paths: str, taken_away: str = "") -> None:
        self._pending.append(_Change(directory_of(paths[-1]), call, paths, taken_away))

    # Methods, no closures: a copy of these names is one of their changes, too.

    def _create_file(self, node: Inode, path: str) -> None:
        self.files[path] = node

    def _remove_file(self, path: str) -> None:
        self.files.pop(path, None)

    def _rename_file(self, source: str, target: str) -> None:
        node = self.files.pop(source, None)
        self.files[target] = node if node is not None else SimInode()

    def _add_directory(self, path: str) -> None:
        self.directories.add(path)

    def _discard_directory(self, path: str) -> None:
        self.directories.discard(path)

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
            (row for row, each in enumerate(self._pending) if each.taken_away == directory),
            default=-1,
        )
        parent = posixpath.dirname(directory)
        left: list[_Change] = []
        for row, each in enumerate(self._pending):
            if each.directory != directory and not (each.directory == parent and row <= last):
                left.append(each)
                continue
            each.make()
            if each.taken_away:  # what is pending in it came before, and goes with it
                left = [earlier.within(*each.paths) for earlier in left]
        self._pending = left

    def forget(self, directory: str) -> None:
        """What is in it, and the directory, are gone for good."""
        inside = directory + "/"
        self.files = {
            path: node for path, node in self.files.items() if not path.startswith(inside)
        }
        self.directories.difference_update(
            [path for path in self.directories if f"{path}/".startswith(inside)]
        )
        self._pending = [
            each
            for each in self._pending
            if each.directory != directory
            and not each.directory.startswith(inside)
            and each.taken_away != directory
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
        for each in self._pending:
            # Journals order the changes of one directory; across directories any order survives.
            if each.directory in ended or random.random() >= keep:
                ended.add(each.directory)
                if each.taken_away:  # what came into a new directory of this name is in none
                    ended.add(each.taken_away)
            else:
                each.make()
        self._pending.clear()

    def reachable(self) -> set[str]:
        """The directories whose parents are there, too."""
        return {path for path in self.directories if self._is_reachable(path)}

    def _is_reachable(self, directory: str) -> bool:
        return directory in self.directories and (
            directory == "/" or self._is_reachable(posixpath.dirname(directory))
        )
