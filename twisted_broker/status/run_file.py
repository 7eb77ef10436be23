"""The run file: how a program that started brokers finds them.

Owns writing and removing the file.

1. It appears whole or not at all, when the last broker is ready, and is removed when they stop. Of
   several, one that ended alone is taken out of it.
2. A program that waits for the file finds no dead broker: the next start removes the file of a
   process that was killed.
3. A start that fails leaves the file of another running process alone.

JSON: `pid`, `cluster_id`, `bootstrap` (HOST:PORT, comma-separated), `controller` (HOST:PORT or
null), `brokers` (node id -> `listeners`: name -> HOST:PORT, `directory`, `status`: HOST:PORT or
null), `status` (all of these, comma-separated).

Ring 2. Source: our own. Not here: when it is written (`broker_service.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any


def broker_entry(
    listeners: Mapping[str, str], directory: str, status: str | None = None
) -> dict[str, Any]:
    """The entry of one broker; `listeners` is name -> HOST:PORT; `status`: HOST:PORT of its status
    port.
    """
    return {"listeners": dict(listeners), "directory": directory, "status": status}


def write_run_file(
    path: str, cluster_id: str, bootstrap: str, controller: str | None, brokers: Mapping[int, Any]
) -> None:
    """OSError when it cannot be written."""
    content = {
        "pid": os.getpid(),
        "cluster_id": cluster_id,
        "bootstrap": bootstrap,
        "controller": controller,
        "status": ",".join(
            entry["status"] for _, entry in sorted(brokers.items()) if entry["status"]
        ),
        "brokers": {str(node_id): entry for node_id, entry in sorted(brokers.items())},
    }
    aside = f"{path}.{os.getpid()}.tmp"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    os.replace(aside, path)


def remove_run_file(path: str) -> None:
    """Gone afterwards, if it is this process's: another one that runs keeps its own."""
    if _owner(path) == os.getpid():
        # A file that cannot be removed must not keep the broker from stopping.
        with contextlib.suppress(OSError):
            os.remove(path)


def remove_stale_run_file(path: str) -> None:
    """Gone afterwards, if the process that wrote it is (or had this one's id, as in a container
    started again).
    """
    owner = _owner(path)
    if owner is not None and (owner == os.getpid() or not _lives(owner)):
        with contextlib.suppress(OSError):
            os.remove(path)


def _owner(path: str) -> int | None:
    """The process that wrote the file; None when there is none, or something else lies there."""
    try:
        with open(path, encoding="utf-8") as file:
            owner = json.load(file)["pid"]
    except (OSError, ValueError, LookupError, TypeError):
        # Anything but our own JSON is somebody else's file: it stays.
        return None
    return owner if isinstance(owner, int) and owner > 0 else None


def _lives(pid: int) -> bool:
    try:
        # Signal 0 is only checked.
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # of another user
    return True
