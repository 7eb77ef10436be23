"""`replog pipeline doctor`: what the pipeline needs, which of it is there, and the command that
installs what is missing.

1. Every check is made, whatever the ones before it found; the exit status is 1 if anything is
   missing.
2. It changes nothing and uses no network.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import click

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import jars, java
from twisted_broker.installed import install

SPARK = install("spark")
PACKAGES: Mapping[str, Callable[[tuple[int, ...]], bool]] = {
    "pyspark": lambda version: version[:2] == (4, 2),
    "pandas": lambda version: (2, 2) <= version < (3,),
    "pyarrow": lambda version: version >= (18,),
    "numpy": lambda version: True,
    "cramjam": lambda version: version >= (2, 8),
    "crc32c": lambda version: version >= (2, 7),
}
"""Each package with what its version must be; pandas 3 breaks PySpark 4.2's own comparison of
frames.
"""
SCHEMES = {"s3": "s3a://", "gcs": "gs://"}

DECODERS = ("fastavro", "protobuf", "confluent-kafka", "cachetools")
"""Packages of the extra `decode`; the last comes with the registry's client alone."""


@dataclass(frozen=True)
class Check:
    """`found`: what is there. `cure`: the command that mends a lack, empty if all is well."""

    name: str
    found: str
    cure: str = ""


def examine() -> list[Check]:
    """All checks, in the order in which the lacks are best cured."""
    stores = map(store_check, SCHEMES)
    return [*map(package, PACKAGES), java_check(), *jar_checks(), *stores, decode_check()]


def package(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "not installed", SPARK)
    fits = PACKAGES[name](numbers(version))
    return Check(name, version) if fits else Check(name, f"{version} does not fit", SPARK)


def numbers(version: str) -> tuple[int, ...]:
    """(2, 9) of "2.9.post0"."""
    parts = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def java_check() -> Check:
    try:
        found = java.find()
    except PipelineError as error:
        return Check("java", str(error).partition(": ")[0], java.REMEDY)
    return Check("java", f"{found.version} by {found.origin}: {found.home}")


def decode_check() -> Check:
    """What only `archive --decode` needs is no lack."""
    lacking = [name for name in DECODERS if not is_installed(name)]
    found = f"no {', '.join(lacking)}: {install('decode')}" if lacking else "all there"
    return Check("archive --decode", found)


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def jar_checks() -> list[Check]:
    """Of those that every machine needs: one check for all that are missing, one for each that is
    damaged; else that all are there.
    """
    missing, damaged = jars.missing(jars.ALL), jars.damaged(jars.ALL)
    lacks = (
        [
            Check(
                "jars",
                f"not in {jars.folder()}: {', '.join(jar.file for jar in missing)}",
                "replog pipeline jars",
            )
        ]
        if missing
        else []
    )
    lacks += [
        Check(
            jar.file,
            "damaged: its SHA-256 is another",
            f"rm {jars.folder() / jar.file} && replog pipeline jars",
        )
        for jar in damaged
    ]
    return lacks or [Check("jars", f"{len(jars.ALL)} in {jars.folder()}")]


def store_check(name: str) -> Check:
    """The jars of an object store. It is no lack that they are not there: a table on such a store
    brings them.
    """
    wanted, scheme = jars.of([name]), SCHEMES[name]
    damaged, missing = jars.damaged(wanted), jars.missing(wanted)
    if damaged:
        path = jars.folder() / damaged[0].file
        cure = f"rm {path} && replog pipeline jars --store {name}"
        return Check(damaged[0].file, "damaged: its SHA-256 is another", cure)
    if missing:
        found = f"not here, only {scheme} needs them; replog pipeline jars --store {name}"
        return Check(f"jars for {scheme}", f"{found}{jars.size(missing)}")
    if name == "s3" and importlib.util.find_spec("botocore") is None:
        return Check("botocore", "not installed, s3a:// needs it", install("s3"))
    return Check(f"jars for {scheme}", f"{len(wanted)} in {jars.folder()}")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="The checks as one JSON array.")
def command(as_json: bool) -> None:
    """Say what is missing on this machine, and the command that cures it.

    The exit status is 1 if anything is.
    """
    checks = examine()
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks]))
    else:
        for check in checks:
            click.echo(
                f"{'lacks' if check.cure else 'ok   '}  {check.name}: {check.found}"
                + (f"\n       cure: {check.cure}" if check.cure else "")
            )
    sys.exit(1 if any(check.cure for check in checks) else 0)
