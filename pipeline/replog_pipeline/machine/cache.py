"""The folder where the pipeline keeps what it fetched: REPLOG_CACHE, else the user's cache folder.

A file is written beside its place and renamed into it, so that one which is there is whole, whoever
else fetches at the same time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """It need not exist yet."""
    if environment.get("REPLOG_CACHE"):
        return Path(environment["REPLOG_CACHE"])
    base = (
        environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    )
    return Path(base) / "twisted-broker"


def write_if_changed(path: Path, content: bytes, mode: int = 0o644) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.chmod(name, mode)
    os.replace(name, path)
