"""The run file: how a program that started brokers finds them.

1. It appears whole or not at all, when the last broker is ready, and goes when they stop.

JSON: `pid`, `cluster_id`, `bootstrap` (HOST:PORT, comma-separated), `controller` (HOST:PORT or null), `brokers` (node id -> `listeners`:
name -> HOST:PORT, `directory`). Ring 2.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any


def broker_entry(listeners: Mapping[str, str], directory: str) -> dict[str, Any]:
    """What is told of one broker; `listeners` is name -> HOST:PORT."""
    return {"listeners": dict(listeners), "directory": directory}


def write_run_file(path: str, cluster_id: str, bootstrap: str, controller: str | None, brokers: Mapping[int, Any]) -> None:
    """OSError when it cannot be written."""
    content = {
        "pid": os.getpid(),
        "cluster_id": cluster_id,
        "bootstrap": bootstrap,
        "controller": controller,
        "brokers": {str(node_id): entry for node_id, entry in sorted(brokers.items())},
    }
    aside = f"{path}.{os.getpid()}.tmp"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    os.replace(aside, path)


def remove_run_file(path: str) -> None:
    """Gone afterwards, whether it was there or not."""
    with contextlib.suppress(OSError):
        os.remove(path)
