"""Asks the resolver inside Spark (Apache Ivy, one of PySpark's jars) for files by their Maven
coordinates.

1. No host is named here: Ivy knows the central repository itself.
2. It runs as its own short process with its own home and cache: the machine's ~/.m2 and ~/.ivy2 are
   not read. A ~/.m2 left half-filled (a POM without its jar) makes Spark's `--packages` say "not
   found" of what the repository has.
3. A Java that does not trust the repository's certificate is tried again with what this machine
   trusts (`trust.py`).
4. Dependencies are not followed: the list of jars is closed, and what Spark already ships must not
   come twice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import java, trust
from twisted_broker.installed import install

Coordinates = tuple[str, str, str]
LIMIT_SECONDS = 600
UNTRUSTED = "SSLHandshakeException"


def retrieve(
    wanted: Iterable[Coordinates],
    target: Path,
    environment: Mapping[str, str],
    limit: int = LIMIT_SECONDS,
) -> None:
    """Puts NAME-VERSION.jar of every (group, name, version) into `target`, within `limit` seconds.

    Raises PipelineError with Ivy's own reason.
    """
    description = target / "ivy.xml"
    description.write_text(module(wanted))
    found = java.find(environment)
    start: list[str | Path] = [found.home / "bin" / "java", f"-Duser.home={target / 'home'}"]
    rest: list[str | Path] = [
        "-cp",
        resolver(),
        "org.apache.ivy.Main",
        "-cache",
        target / "cache",
        "-ivy",
        description,
        "-types",
        "jar",
        "bundle",
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    ]
    done = run([*start, *rest], limit)
    if done.returncode and UNTRUSTED in done.stdout + done.stderr:
        done = run([*start, *trust.options(target / "trusted"), *rest], limit)
    if done.returncode:
        raise PipelineError(
            f"jars: {reason(done.stdout + done.stderr)}; is there a network? Else set "
            "REPLOG_JARS_URL to a mirror"
        )


def run(command: list[str | Path], limit: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise PipelineError(
            f"jars: the repository did not answer within {limit} s; set REPLOG_JARS_URL to a mirror"
        ) from None


def module(wanted: Iterable[Coordinates]) -> str:
    """Ivy's description of a module that needs exactly these."""
    lines = [
        (
            f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} "
            'transitive="false"/>'
        )
        for group, name, version in wanted
    ]
    return (
        '<ivy-module version="2.0"><info organisation="twisted-broker" module="pipeline" '
        'revision="1"/>'
        '<configurations><conf name="default"/></configurations>'
        f'<dependencies defaultconf="default->master">{"".join(lines)}</dependencies></ivy-module>'
    )


def resolver() -> Path:
    """Ivy's jar among PySpark's."""
    try:
        import pyspark
    except ImportError:
        raise PipelineError(f"Spark is not installed: {install('spark')}") from None
    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise PipelineError(
            "PySpark has no ivy-*.jar: pip install --force-reinstall pyspark==4.2.0"
        )
    return found[-1]


def reason(said: str) -> str:
    """The first complaint in what Ivy printed."""
    lines = [line.strip(" :\t") for line in said.splitlines()]
    complaints = [
        line
        for word in (UNTRUSTED, "Exception", "timed out", "not found")
        for line in lines
        if word in line
    ]
    return (complaints or ["Spark's resolver failed"])[0]
