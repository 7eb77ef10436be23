"""Which object store a place is in, by its URI alone.

1. `s3a` and `gs` are the schemes of Hadoop's connectors, whose jars `machine.jars` pins. Any other
   scheme is left to Spark and to whoever brings its jars.
2. A Parquet table is made of renames that are atomic and refuse an existing name. Object stores
   have none: what is not a file system that has them is refused for it.
3. Secrets are not part of a URI: such a place is refused, and not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from replog_pipeline.errors import PipelineError

JARS = {"s3a": "s3", "gs": "gcs"}
"""Scheme -> the name of its jars."""
OLD_NAMES = ("s3", "s3n")
TOPICS = ("kafka:", "segments:")
RENAMES_ATOMICALLY = ("", "file", "hdfs", "webhdfs", "viewfs")


def scheme(place: str) -> str:
    """Empty for a path."""
    if place.startswith("file:"):
        return "file"
    return place.partition("://")[0].lower() if "://" in place else ""


def jars_of(places: Iterable[str]) -> tuple[str, ...]:
    """The names of the jars that the places need, each once."""
    return tuple(dict.fromkeys(JARS[scheme(each)] for each in places if scheme(each) in JARS))


def bucket(place: str) -> tuple[str, str]:
    """(bucket, what follows it)."""
    name, _, key = place.partition("://")[2].partition("/")
    return name, key.strip("/")


def check(place: str, setting: str, *, is_table: bool = True) -> None:
    """PipelineError unless the place names something that can be a folder: not a topic, and of an
    object store a bucket and, of a table, a folder in it.
    """
    if not place.strip():
        raise PipelineError(
            f"{setting}: it is empty: name a folder, or a URI as s3a://BUCKET/TABLE"
        )
    if place.startswith(TOPICS):
        raise PipelineError(f"{setting} {place}: it is no table: name a folder, or a URI of one")
    found = scheme(place)
    if found in OLD_NAMES:
        raise PipelineError(
            f"{setting}: Hadoop's connector for S3 is s3a: write s3a://BUCKET/TABLE"
        )
    if found not in JARS:
        return
    name, key = bucket(place)
    if "@" in name or ":" in name:
        raise PipelineError(
            f"{setting}: a {found}:// URI holds no credentials and no port: write "
            f"{found}://BUCKET/TABLE, and the rest as settings (docs/PIPELINE.md, Object stores)"
        )
    if not name or (is_table and not key):
        raise PipelineError(
            f"{setting} {place}: name a bucket and a folder: {found}://BUCKET/TABLE"
        )


def check_ledger(place: str, form: str | None, setting: str) -> None:
    """PipelineError for a Parquet table where no rename is atomic."""
    if form == "parquet" and scheme(place) not in RENAMES_ATOMICALLY:
        raise PipelineError(
            f"{setting}: {place}: the ledger of a Parquet table needs renames that are atomic, "
            f"which {scheme(place)}:// has not: use Delta"
        )
