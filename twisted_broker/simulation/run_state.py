"""The finished seeds of a long run, in a file: so that it can be stopped, and continued.

Owns `RunState` and `source_of`.

1. One JSON line per finished item, behind a line that says what was run; written at once, so that a
   run that is killed loses only what was under way.
2. Another source or other options begin anew, and so does a run whose items are all finished.

Not here: what an item is (`simulation/many_seeds.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO


def source_of(roots: Iterable[Path]) -> str:
    """What the modules under some directories are, in a few digits."""
    digest = sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class RunState:
    """`finished`: item -> its result, which is what JSON can hold.

    `began`: a line that says whether the run goes on from an earlier one, "" for a first run.
    """

    def __init__(self, path: Path, run: dict[str, Any], items: Collection[Any]) -> None:
        self.finished: dict[Any, Any] = {}
        self.began = ""
        known, rows = _read(path)
        if known is not None and known != {"run": run}:
            self.began = f"{path}: of another source or other options; begins anew"
        elif known is not None and rows.keys() >= set(items):
            self.began = f"{path}: that run was finished; begins anew"
        elif rows:
            self.finished = rows
            self.began = f"{path}: goes on, {len(rows.keys() & set(items)):,} are finished"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written anew even to go on: a line that was torn by a kill goes.
        self._file: TextIO = path.open("w")
        self._write({"run": run})
        for item, result in self.finished.items():
            self._write({"item": item, "result": result})

    def add(self, item: Any, result: Any) -> None:
        self.finished[item] = result
        self._write({"item": item, "result": result})

    def close(self) -> None:
        self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def _read(path: Path) -> tuple[dict[str, Any] | None, dict[Any, Any]]:
    """What was run, and the results; up to the first line that is torn."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    if not rows:
        return None, {}
    return rows[0], {row["item"]: row["result"] for row in rows[1:]}
