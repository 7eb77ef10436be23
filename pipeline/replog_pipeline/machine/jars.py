"""The jars that PySpark lacks: Spark's Kafka connector, Delta, and Hadoop's connectors for object
stores, pinned by version and SHA-256.

1. A jar is used only when its SHA-256 is the one written here; it is checked when it comes in, and
   by `doctor`.
2. They come through Spark's own resolver (`ivy.py`), or from REPLOG_JARS_URL, a mirror laid out as
   Maven repositories are. Once they are there, no network is used.
3. The token provider is 4.0.0 beside a connector 4.2.0: this pair is tested; it is only used for
   SASL and delegation tokens.
4. Hadoop's connectors are of the version that PySpark ships of Hadoop, with the AWS SDK that this
   version was built with. They are large, so they are fetched for a table on such a store only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import cache, ivy

REMEDY = (
    "run `replog pipeline jars` where the network is, or set REPLOG_JARS_URL to a mirror "
    "of a Maven repository"
)


@dataclass(frozen=True)
class Jar:
    """Maven coordinates and the SHA-256 of the file, in hex; `mb`: of a large one its size in
    million bytes.
    """

    group: str
    name: str
    version: str
    sha256: str
    mb: int = 0

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def place(self) -> str:
        """Its path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file}"


SPARK = "org.apache.spark"
HADOOP = "3.5.0"
FORMATS: dict[str, tuple[Jar, ...]] = {
    "kafka": (
        Jar(
            SPARK,
            "spark-sql-kafka-0-10_2.13",
            "4.2.0",
            "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        ),
        Jar(
            SPARK,
            "spark-token-provider-kafka-0-10_2.13",
            "4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar(
            "org.apache.kafka",
            "kafka-clients",
            "3.9.2",
            "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        ),
        Jar(
            "org.apache.commons",
            "commons-pool2",
            "2.13.1",
            "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
        ),
    ),
    "delta": (
        Jar(
            "io.delta",
            "delta-spark_4.2_2.13",
            "4.4.0",
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        ),
        Jar(
            "io.delta",
            "delta-storage",
            "4.4.0",
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        ),
    ),
    "s3": (
        Jar(
            "org.apache.hadoop",
            "hadoop-aws",
            HADOOP,
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        ),
        Jar(
            "software.amazon.awssdk",
            "bundle",
            "2.35.4",
            "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677",
            mb=686,
        ),
        Jar(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            "1.3.1",
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
        ),
    ),
    "gcs": (
        Jar(
            "org.apache.hadoop",
            "hadoop-gcp",
            HADOOP,
            "25686b2e711f5d8a5b08bef3489e62ccd046310dd4adf65b9ea216d9f53ddc3f",
            mb=35,
        ),
    ),
}
ALL = FORMATS["kafka"] + FORMATS["delta"]
"""What every machine needs."""
STORES = ("s3", "gcs")
"""What only tables on such a store need."""

SECONDS_PER_MB = 4
"""How long a large jar may take."""

Tell = Callable[[str], None]


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the jars are kept: REPLOG_JARS, else `jars` in the cache folder."""
    return (
        Path(environment["REPLOG_JARS"])
        if environment.get("REPLOG_JARS")
        else cache.folder(environment) / "jars"
    )


def of(formats: Iterable[str]) -> tuple[Jar, ...]:
    """The jars of some formats. Raises PipelineError for an unknown one."""
    names = list(formats)
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise PipelineError(
            f"formats: no jars are known for {unknown[0]!r}; known are {', '.join(FORMATS)}"
        )
    return tuple(jar for name in names for jar in FORMATS[name])


def missing(jars: Iterable[Jar], environment: Mapping[str, str] = os.environ) -> list[Jar]:
    return [jar for jar in jars if not (folder(environment) / jar.file).exists()]


def damaged(jars: Iterable[Jar], environment: Mapping[str, str] = os.environ) -> list[Jar]:
    """Those that are there and are not what they should be."""
    paths = [(jar, folder(environment) / jar.file) for jar in jars]
    return [jar for jar, path in paths if path.exists() and digest(path) != jar.sha256]


def provide(
    jars: Iterable[Jar], tell: Tell, environment: Mapping[str, str] = os.environ
) -> list[Path]:
    """The paths of `jars`, after what is missing was fetched.

    Raises PipelineError, with nothing half-written.
    """
    wanted = list(jars)
    lacking = missing(wanted, environment)
    if lacking:
        fetch(lacking, tell, environment)
    return [folder(environment) / jar.file for jar in wanted]


def fetch(lacking: list[Jar], tell: Tell, environment: Mapping[str, str]) -> None:
    """Into a folder beside the others first; what has the right digest moves in."""
    folder(environment).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder(environment)) as name:
        if environment.get("REPLOG_JARS_URL"):
            download(lacking, environment["REPLOG_JARS_URL"], Path(name), tell)
        else:
            tell(f"fetching {len(lacking)} jars with Spark's own resolver (once{size(lacking)})")
            ivy.retrieve(
                [(jar.group, jar.name, jar.version) for jar in lacking],
                Path(name),
                environment,
                ivy.LIMIT_SECONDS + sum(jar.mb for jar in lacking) * SECONDS_PER_MB,
            )
        for jar in lacking:
            accept(jar, Path(name) / jar.file)
            os.replace(Path(name) / jar.file, folder(environment) / jar.file)


def size(jars: Iterable[Jar]) -> str:
    """What is added to a line about large ones."""
    found = sum(jar.mb for jar in jars)
    return f", {found} MB" if found else ""


def accept(jar: Jar, path: Path) -> None:
    if not path.exists():
        raise PipelineError(f"jar {jar.file} could not be fetched: {REMEDY}")
    if digest(path) != jar.sha256:
        raise PipelineError(
            f"jar {jar.file} has SHA-256 {digest(path)}, not {jar.sha256}: its source is "
            "damaged or another's; nothing was kept"
        )


def download(jars: list[Jar], base: str, target: Path, tell: Tell) -> None:
    if "@" in urlsplit(base).netloc:  # a password in it would be shown, and is not understood
        raise PipelineError(
            "REPLOG_JARS_URL: no user in the URL: name a mirror that needs none, or a copy by "
            "file://"
        )
    for jar in jars:
        url = f"{base.rstrip('/')}/{jar.place}"
        tell(f"fetching {jar.file}{size([jar])}")
        try:
            with (
                urllib.request.urlopen(url, timeout=60) as answer,  # noqa: S310  the operator names it
                (target / jar.file).open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
        except (OSError, ValueError) as error:
            raise PipelineError(f"REPLOG_JARS_URL: {url} cannot be read: {error}") from error


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
