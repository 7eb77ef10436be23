"""The pip command that installs one of this package's extras: it depends on how the package was
installed.

1. pip notes where it took a package from (`direct_url.json`, PEP 610): a checkout, a file, a
   repository. From there the extra comes too.
2. Without such a note a checkout is known by its `pyproject.toml` beside the package; anything else
   came from an index, by its name.
3. The extras of the pipeline need its distribution, of the same version; the broker's own
   (`OF_BROKER`) do not, and it is large. What holds the source of one holds the other's, in the
   folder `pipeline`; wheels lie in one folder. The broker is named first: pip before 24, which
   Python 3.11 brings, finds no broker for a pipeline that it met before.

A checkout or file that is gone meanwhile is passed over. Beside it: whether what runs is compiled.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from twisted_broker.wire import primitives

PACKAGE = "twisted-broker"
PIPELINE, FOLDER = "twisted-broker-pipeline", "pipeline"
OF_BROKER = frozenset({"docs", "jks", "oauth", "simulate", "test", "tls", "zookeeper"})


def how_it_runs() -> str:
    """Whether the hot modules are compiled, and by which interpreter they are run."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        name += " (PGO)"
    is_plain = (primitives.__file__ or "").endswith(".py")
    return f"{'plain Python' if is_plain else 'compiled by mypyc'}, {name}"


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
        # pip's own file, of whatever shape: without it the plain command is named.
        return {}
    return found if isinstance(found, dict) else {}


def beside_package() -> Path:
    """The folder that holds the package: of a checkout its root."""
    return Path(__file__).absolute().parents[1]


def command(extra: str, origin: Mapping[str, Any], beside: Path) -> str:
    """`origin`: the content of `direct_url.json`, empty without one.

    `beside`: the folder that holds the package.
    """
    url = str(origin.get("url", ""))
    place = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if place is not None and place.is_dir():
        return from_checkout(place, extra, bool(origin.get("dir_info", {}).get("editable")))
    if place is not None and place.exists() and place.suffix == ".whl":
        return pip("--find-links", str(place.parent), f"{place}[{extra}]")
    if "vcs_info" in origin:
        version = origin["vcs_info"].get("commit_id")
        return from_source(
            f"{origin['vcs_info'].get('vcs', 'git')}+{url}" + (f"@{version}" if version else ""),
            extra,
        )
    if url and (place is None or place.exists()):
        if urlsplit(url).path.endswith(".whl"):
            return pip(f"{PACKAGE}[{extra}] @ {url}")
        return from_source(url, extra)
    if (beside / "pyproject.toml").exists():
        return from_checkout(beside, extra, is_editable=True)
    return pip(f"{PACKAGE}[{extra}]")


def from_checkout(root: Path, extra: str, is_editable: bool) -> str:
    """Of a folder that holds the source."""
    option = ["-e"] if is_editable else []
    pipeline = [] if extra in OF_BROKER else [*option, str(root / FOLDER)]
    return pip(*option, f"{root}[{extra}]", *pipeline)


def from_source(url: str, extra: str) -> str:
    """Of a repository or an archive of one."""
    pipeline = [] if extra in OF_BROKER else [f"{PIPELINE} @ {url}#subdirectory={FOLDER}"]
    return pip(f"{PACKAGE}[{extra}] @ {url}", *pipeline)


def pip(*arguments: str) -> str:
    """As a shell takes it."""
    return f"pip install {shlex.join(arguments)}"
