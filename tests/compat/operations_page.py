"""docs/OPERATIONS.md as a program: its recipes, and a terminal in which they are typed.

A recipe is a section of the page. Blocks of `sh` are typed as they stand, but for the values of the
variables that the page declares at its top. Blocks of `text` are lines that must appear while the
recipe runs: `NODE: line` in a node's log, `out: line` on the terminal, `..` for what may be
anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

PAGE = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
PREPARATION = "Before you begin"
COMMAND_SECONDS = 80
LINE_SECONDS = 10
_SECTION = re.compile(r"^## (.+)$", re.M)
_BLOCK = re.compile(r"^```(sh|text)(.*)\n((?:.*\n)*?)```$", re.M)
_VARIABLE = re.compile(r"^([A-Z]\w*)=(\S+)( *#.*)?$")


@dataclass
class Recipe:
    """`commands`: (what stands behind `sh`, text) in their order; `lines`: (node or `out`, text)
    of what must be seen.
    """

    name: str
    commands: list[tuple[str, str]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)


def read_page(text: str) -> dict[str, Recipe]:
    """The sections that have blocks."""
    found: dict[str, Recipe] = {}
    _, *parts = _SECTION.split(text)
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        recipe = Recipe(name)
        for kind, more, block in _BLOCK.findall(body):
            if kind == "sh":
                recipe.commands.append((more.strip(), block))
            else:
                recipe.lines += [_node_and_line(line) for line in block.splitlines()]
        if recipe.commands:
            found[name] = recipe
    return found


def _node_and_line(line: str) -> tuple[str, str]:
    node, _, words = line.partition(": ")
    return node, words


def declared(block: str) -> dict[str, str]:
    """The variables of the page's first block, with their values there."""
    found = (_VARIABLE.match(line) for line in block.splitlines())
    return {each[1]: each[2].strip('"') for each in found if each}


def with_values(block: str, values: dict[str, str]) -> str:
    """The first block with other values: for all its variables, and for no other one."""
    assert declared(block).keys() == values.keys()
    return "".join(f"{name}='{value}'\n" for name, value in values.items())


def can_mount() -> bool:
    """Whether a shell of `unshare -rm` may mount here."""
    if which("unshare") is None:
        return False
    tried = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


class Terminal:
    """A shell that lives for many blocks, in `directory`; with `mounts` it may mount, unseen by
    others.
    """

    def __init__(self, directory: Path, values: dict[str, str], mounts: bool) -> None:
        self.directory, self.values = directory, values
        self.cluster = Path(values["CLUSTER"])
        self.out = directory / "out"
        self._failures = directory / "failures"
        self._typed = 0
        self._pids: set[int] = set()
        self._seen: dict[str, int] = {}
        directory.mkdir(parents=True)
        environment = dict(os.environ)
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with self.out.open("wb") as out:
            self._shell = subprocess.Popen(
                [*(["unshare", "-rm"] if mounts else []), "bash", "--norc"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
            )
        self.type(f"set -E; trap 'echo \"$BASH_COMMAND\" >> {self._failures}' ERR\n")

    def type(self, block: str) -> None:
        """Ends when the commands have; none may fail."""
        self._typed += 1
        script, done = (self.directory / f"{self._typed}{end}" for end in ("", ".done"))
        script.write_text(block)
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"source {script}; echo > {done}\n".encode())
        self._shell.stdin.flush()
        deadline = time.monotonic() + COMMAND_SECONDS
        while not done.exists() and not self._failures.exists():
            self._note_pids()
            if time.monotonic() > deadline or self._shell.poll() is not None:
                raise AssertionError(f"did not end:\n{block}\n{self.story()}")
            time.sleep(0.02)
        self._note_pids()
        if self._failures.exists():
            failed = self._failures.read_text()
            raise AssertionError(f"failed: {failed}\nof:\n{block}\n{self.story()}")

    def _note_pids(self) -> None:
        for path in self.cluster.glob("*.pid"):
            with suppress(OSError, ValueError):  # it ends, or begins, just now
                self._pids.add(int(path.read_text()))

    def run(self, recipe: Recipe, kind: str = "") -> None:
        """Types the blocks of one kind, and waits for the lines that must be seen."""
        self.forget_lines()
        for more, block in recipe.commands:
            if more == kind:
                self.type(block)
        for node, line in recipe.lines if not kind else ():
            self._await_line(node, line)

    def forget_lines(self) -> None:
        """Only lines after this count."""
        self._seen = {path.name: path.stat().st_size for path in self._files()}

    def _files(self) -> list[Path]:
        return [self.out, *self.cluster.glob("*.log")]

    def _await_line(self, node: str, line: str) -> None:
        path = self.out if node == "out" else self.cluster / f"{node}.log"
        for name, value in self.values.items():
            line = re.sub(rf"\${name}\b", value.replace("\\", "\\\\"), line)
        parts = (re.escape(part) for part in line.split(".."))
        pattern = re.compile(".*".join(parts).replace(r"\ .*", ".*") + "$", re.M)
        deadline = time.monotonic() + LINE_SECONDS
        while True:
            text = path.read_bytes()[self._seen.get(path.name, 0) :].decode(errors="replace")
            if pattern.search(text):
                return
            assert time.monotonic() < deadline, f"{node} does not say: {line}\n{text[-6000:]}"
            time.sleep(0.05)

    def story(self) -> str:
        """The ends of what was printed and logged."""
        ends = [
            f"--- {path.name}\n{path.read_bytes()[-2500:].decode(errors='replace')}"
            for path in self._files()
        ]
        return "\n".join(ends)

    def close(self) -> None:
        """Ends the shell, and all nodes that were started in it."""
        self._note_pids()
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        for pid in self._pids:
            with suppress(OSError):  # it has ended
                process = Path(f"/proc/{pid}")
                its = f"{(process / 'cmdline').read_text()} {(process / 'cwd').readlink()}"
                if str(self.cluster) in its:  # and not another one that has its number now
                    os.kill(pid, signal.SIGKILL)
