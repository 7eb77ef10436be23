"""The pip command that adds one of this package's extras, as it works for the way in which the
package was installed.

1. pip notes where it took a package from (`direct_url.json`, PEP 610): a checkout, a file, a
   repository. From there the extra comes too.
2. Without such a note a checkout is known by its `pyproject.toml` beside the package; anything else
   came from an index, by its name.

A checkout or file that is gone meanwhile is passed over.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PACKAGE = "twisted-broker"


def install(extra: str) -> str:
    """The command."""
    try:
        found = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return command(extra, {}, beside_package())
    return command(extra, noted(found.read_text("direct_url.json")), beside_package())


def noted(text: str | None) -> Mapping[str, Any]:
    """What pip noted; empty where it noted nothing that can be read."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def beside_package() -> Path:
    """The folder that holds the package: of a checkout its root."""
    return Path(__file__).absolute().parents[3]


def command(extra: str, origin: Mapping[str, Any], beside: Path) -> str:
    """`origin`: the content of `direct_url.json`, empty without one.

    `beside`: the folder that holds the package.
    """
    url = str(origin.get("url", ""))
    place = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if place is not None and place.exists():
        is_editable = bool(origin.get("dir_info", {}).get("editable"))
        return pip(f"{place}[{extra}]", is_editable)
    if "vcs_info" in origin:
        version = origin["vcs_info"].get("commit_id")
        return pip(
            f"{PACKAGE}[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}"
            + (f"@{version}" if version else "")
        )
    if url and place is None:
        return pip(f"{PACKAGE}[{extra}] @ {url}")
    if (beside / "pyproject.toml").exists():
        return pip(f"{beside}[{extra}]", is_editable=True)
    return pip(f"{PACKAGE}[{extra}]")


def pip(what: str, is_editable: bool = False) -> str:
    return f"pip install {'-e ' if is_editable else ''}{shlex.quote(what)}"
